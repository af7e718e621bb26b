"""The guard's types, under mypy and pyright at their strictest, with every driver and with one.

A line that must be an error says so in an ignore comment; one that is not needed is an error itself.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.servers import Unavailable

pytestmark = pytest.mark.timeout(300)  # each checker reads its libraries anew
HERE = Path(__file__).parent
_NOT_FOUND = "# type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]"
ENVIRONMENTS = {"every_driver": None, "one_driver": ("psycopg", "msgspec", "typing_extensions")}


@pytest.fixture(params=ENVIRONMENTS)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with one sample, and beside it an environment that has what the sample may know."""
    name: str = request.param
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "oncebox").symlink_to(_origin("oncebox"))
    packages = ENVIRONMENTS[name]
    if packages is None:
        folders = {
            str(_origin(package).parent) for package in ("psycopg", "asyncpg", "sqlalchemy", "msgspec")
        }
        (site / "every.pth").write_text("\n".join(sorted(folders)))
    for package in packages or ():
        (site / _origin(package).name).symlink_to(_origin(package))
    folder = tmp_path / "sample"
    folder.mkdir()
    (folder / f"{name}.py").write_bytes((HERE / f"{name}.py").read_bytes())
    if packages is not None:
        # One driver means one: the checkers must not find another.
        (folder / "absent.py").write_text(f"import sqlalchemy  {_NOT_FOUND}\nprint(sqlalchemy)\n")
    return folder


def _origin(package: str) -> Path:
    """The folder of a package, or the file of a module."""
    spec = find_spec(package)
    assert spec is not None, package
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    assert spec.origin is not None, package
    return Path(spec.origin)


def _python(sample: Path) -> str:
    return str(sample.parent / "env" / "bin" / "python")


def test_mypy_strict(sample: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-incremental"]
    _passes([*command, "--python-executable", _python(sample), str(sample)], sample)


def test_pyright_strict(sample: Path) -> None:
    _need_pyright()
    settings = {
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (sample / "pyrightconfig.json").write_text(json.dumps(settings))
    _passes([sys.executable, "-m", "pyright", "-p", str(sample), "--pythonpath", _python(sample)], sample)


@functools.cache
def _need_pyright() -> None:
    """It needs node, and may have to fetch it."""
    try:
        done = subprocess.run([sys.executable, "-m", "pyright", "--version"], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        missing(Unavailable("pyright did not start within 60 seconds"))
    if done.returncode != 0:
        missing(Unavailable("pyright can't run here: it needs node, or the network to fetch it"))


def _passes(command: list[str], folder: Path) -> None:
    # mypy asks the environment's Python for its path, which PYTHONPATH would add to.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
