"""The suite's fixtures, for this folder."""

from tests.core.fixtures import kind, mode, pytest_pyfunc_call, shop, shop_database, shop_url

__all__ = ["kind", "mode", "pytest_pyfunc_call", "shop", "shop_database", "shop_url"]
