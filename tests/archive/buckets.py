"""A bucket on a private S3, once for each test that asks for one."""

import itertools
import urllib.request
from collections.abc import Iterator

import pytest

from tests.servers.moto import REGION, Moto

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[Moto]:
    with Moto() as moto:
        yield moto


@pytest.fixture
def bucket(s3: Moto, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket; the environment says how to reach it."""
    name = f"archive-{next(_numbers)}"
    request = urllib.request.Request(f"{s3.url}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass
    for word, value in {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(word, value)
    return f"s3://{name}/some/prefix"


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.xdist_group("s3"))])
def url(request: pytest.FixtureRequest) -> str:
    """Both kinds of place."""
    if request.param == "folder":
        return str(request.getfixturevalue("tmp_path") / "archive")
    found: str = request.getfixturevalue("bucket")
    return found
