"""Notifications: the receiver is told, by a provider outside. No transaction can undo that call."""

from __future__ import annotations

import httpx

from examples.delivery.parts import BROKER, PREFIX, PROVIDER, URL, Broker, Scan
from oncebox import App, Backoff, Call
from oncebox.integrations.httpx import EffectTransport, named

broker = Broker(BROKER, PREFIX)
app = App(URL, source="notify", heartbeat_seconds=0.5, lapse_seconds=3)
notify = app.consumer(
    "notify",
    broker.queue("notices"),
    mode="stored",
    retry=Backoff(attempts=1000, base_seconds=0.05, max_seconds=1),
    lease_seconds=2,
    timeout=10,
    crash_limit=1000,
)
http = httpx.Client(base_url=PROVIDER, transport=EffectTransport(), timeout=5)


@notify.effect("parcel.moved", on_unknown="retry")
def text(notice: Scan, call: Call) -> dict[str, str]:
    """Asked again after a crash or a lost answer, always with the same key: the provider tells one from two."""
    body = {"to": notice.phone, "scan": notice.scan, "text": f"{notice.parcel}: {notice.status}"}
    answer = http.post("/texts", json=body, extensions=named(call))
    answer.raise_for_status()
    return {"request": answer.json()["request"]}
