"""The columns that the documented settings of Debezium's outbox router name are there, with what they should hold."""

import re
from pathlib import Path

import psycopg

from oncebox import Outbox
from oncebox.drivers.database import Database
from oncebox.runtime.schema import migrate

PAGE = Path(__file__).parents[2] / "docs/how-to/outgoing.md"


def test_every_column_that_the_settings_name_is_there(pg_url: str) -> None:
    (block,) = re.findall(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    settings = dict(line.split("=", 1) for line in block.splitlines())
    fields = {
        name.rpartition(".")[2]: column
        for name, column in settings.items()
        if ".table.field." in name or name.endswith("route.by.field")
    }
    placed = [
        each.split(":")[0]
        for each in settings["transforms.outbox.table.fields.additional.placement"].split(",")
    ]
    migrate(Database(pg_url))
    schema, _, table = settings["table.include.list"].partition(".")
    with psycopg.connect(pg_url) as connection:
        Outbox("shop").publish(connection, "order.placed", {"order": 7}, key=7, id="evt-1")
        connection.commit()
        cursor = connection.execute(f"SELECT * FROM {schema}.{table}".encode())
        assert cursor.description is not None
        row = dict(zip([column.name for column in cursor.description], cursor.fetchall()[0], strict=True))
    held = {name: row[column] for name, column in fields.items()}
    assert held == {
        "id": "evt-1", "key": "7", "type": "order.placed", "payload": b'{"order":7}', "field": "order.placed"
    }  # fmt: skip
    assert [row[column] for column in placed] == ["order.placed", "shop", "evt-1"]
