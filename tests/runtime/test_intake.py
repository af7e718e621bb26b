"""What arrives becomes an item, whatever it is."""

from pathlib import Path
from typing import Any

from oncebox import App
from oncebox.brokers.contract import Delivery
from oncebox.core.outcomes import Reason


def test_headers_of_another_kind_than_promised_are_kept_among_the_dead(tmp_path: Path) -> None:
    """A source that breaks its contract must not hold up what came with it."""
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    billing = app.consumer("billing")

    @billing.handler("paid")
    def paid(body: dict[str, Any]) -> None: ...

    headers: Any = (("ce-id", "text"), ("ce-source", "shop"))
    item = billing.intake.from_delivery(Delivery(body=b"{}", headers=headers, properties={"type": "paid"}))
    assert item.refusal is not None
    assert item.refusal[0] is Reason.UNDECODABLE
    assert item.message.payload == b"{}"
