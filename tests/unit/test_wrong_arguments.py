"""Things that are not what they should be are refused by name, not by an AttributeError inside."""

from typing import Any, cast

import pytest

from oncebox import App, Message
from oncebox.errors import ConfigError
from oncebox.testing import prove_once


def test_a_source_that_is_a_name() -> None:
    app = App("sqlite:///shop.db")
    with pytest.raises(ConfigError, match=r"consumer 'billing': 'payments' is no source; .* broker.queue"):
        app.consumer("billing", cast("Any", "payments"), mode="stored")
    assert app.consumers == {}


def test_a_proof_of_no_app() -> None:
    with pytest.raises(TypeError, match=r"'sqlite:///x.db': give the app, or one of its consumers"):
        prove_once(cast("Any", "sqlite:///x.db"), Message(id="a", type="t", payload={}))
