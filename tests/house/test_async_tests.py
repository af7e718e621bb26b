"""`async def` tests really run; an unawaited test would pass by accident."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest_plugins = ["pytester"]

_CONFTEST = "from tests.conftest import pytest_pyfunc_call\n"


def test_a_failing_async_test_fails(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile("async def test_fails(tmp_path):\n    assert tmp_path is None\n")
    pytester.runpytest_inprocess("-p", "no:xdist").assert_outcomes(failed=1)


@given(st.integers())
@settings(max_examples=5)
async def test_hypothesis_drives_async_tests(number: int) -> None:
    await asyncio.sleep(0)
    assert asyncio.get_running_loop().is_running()
    assert isinstance(number, int)
