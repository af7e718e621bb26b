"""Package state: each scan moves its parcel on by one version, and is announced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.delivery.parts import BROKER, PREFIX, URL, Broker, Scan, sql
from oncebox import App, Backoff, Discard, Retry, Tx

if TYPE_CHECKING or URL.startswith("sqlite"):
    from sqlite3 import Connection
else:
    from psycopg import Connection

broker = Broker(BROKER, PREFIX)
app = App(URL, sink=broker.to("notices"), source="tracking", heartbeat_seconds=0.5, lapse_seconds=3)
tracking = app.consumer(
    "tracking", broker.queue("tracking"), mode="stored", retry=Backoff(attempts=10_000), crash_limit=1000
)


@tracking.handler("parcel.scanned")
def moved(scan: Scan, conn: Connection, tx: Tx) -> None:
    """Compare and set: whoever comes too early waits for the scan before it."""
    conn.execute(sql("INSERT INTO parcel VALUES (?, 0, 'new') ON CONFLICT DO NOTHING"), (scan.parcel,))
    changed = conn.execute(
        sql("UPDATE parcel SET version = ?, status = ? WHERE id = ? AND version = ?"),
        (scan.version, scan.status, scan.parcel, scan.version - 1),
    )
    if not changed.rowcount:
        known = conn.execute(sql("SELECT version FROM parcel WHERE id = ?"), (scan.parcel,)).fetchone()[0]
        if known >= scan.version:
            raise Discard(f"version {known} is known already")
        raise Retry(after=0.05)
    conn.execute(
        sql("INSERT INTO move (scan, parcel, version) VALUES (?, ?, ?)"),
        (scan.scan, scan.parcel, scan.version),
    )
    tx.publish("parcel.moved", scan, key=scan.parcel)
