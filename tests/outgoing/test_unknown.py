"""Which errors of which clients leave open whether a call happened."""

import socket

import httpx
import pytest

from oncebox.core.unknown import is_unknown
from oncebox.errors import HandlerTimeout, UnknownEffect


class ReadTimeoutError(Exception):
    """As urllib3 and botocore call theirs."""


class ServerDisconnectedError(Exception):
    """As aiohttp calls its own."""


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(), ConnectionResetError(), BrokenPipeError(), HandlerTimeout(),
        UnknownEffect(), httpx.ReadTimeout(""), httpx.WriteTimeout(""), httpx.ReadError(""),
        httpx.RemoteProtocolError(""), ReadTimeoutError(), ServerDisconnectedError(),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_may_have_happened(error: Exception) -> None:
    assert is_unknown(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(), ConnectionRefusedError(), socket.gaierror(), httpx.ConnectError(""),
        httpx.ConnectTimeout(""), httpx.PoolTimeout(""), httpx.InvalidURL(""),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_did_not_happen(error: Exception) -> None:
    assert not is_unknown(error)
