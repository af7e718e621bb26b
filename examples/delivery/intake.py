"""Scan intake: a scan comes by webhook, by broker, by both, and again. It is passed on once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.delivery.parts import BROKER, PREFIX, TOKEN, URL, Broker, Scan, sql
from oncebox import App, Tx
from oncebox.webhooks import Webhooks, token

if TYPE_CHECKING or URL.startswith("sqlite"):
    from sqlite3 import Connection
else:
    from psycopg import Connection

broker = Broker(BROKER, PREFIX)
app = App(URL, sink=broker.to("tracking"), source="intake", heartbeat_seconds=0.5, lapse_seconds=3)
# In the demo, processes die of kill -9 and not of a message: it takes many deaths to suspect one.
intake = app.consumer("intake", broker.queue("scans"), crash_limit=1000)

hooks = Webhooks(app)
hooks.add("/scans", intake, verify=token(TOKEN))


@intake.handler("parcel.scanned")
def scanned(scan: Scan, conn: Connection, tx: Tx) -> None:
    """Write it down and pass it on, in one transaction. Scans of a parcel go out in order."""
    conn.execute(
        sql("INSERT INTO scan (id, parcel, version) VALUES (?, ?, ?)"), (scan.scan, scan.parcel, scan.version)
    )
    tx.publish("parcel.scanned", scan, key=scan.parcel)
