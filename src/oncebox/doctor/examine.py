"""All checks, one after the other: what a broken one leaves unknown does not keep the others from looking."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from oncebox.app import App
from oncebox.core.run import run_async
from oncebox.core.steps import Op
from oncebox.core.watermark import Watermark, watermarks
from oncebox.doctor.brokers import check_brokers, check_sinks
from oncebox.doctor.database import check_schema, check_server, check_tables
from oncebox.doctor.findings import Finding, found
from oncebox.doctor.kinds import Severity
from oncebox.doctor.policies import check_policies
from oncebox.doctor.pooler import check_pooler
from oncebox.doctor.standing import check_standing
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings, database_steps
from oncebox.errors import ConfigError, DatabaseError, DatabaseUnavailable
from oncebox.runtime.sessions import finished

T = TypeVar("T")

PATIENCE_SECONDS = 300.0
LAPSE_SECONDS = 10.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, the worst first, and what was looked at."""

    findings: list[Finding]
    checked: list[str]

    @property
    def worst(self) -> Severity | None:
        """The worst severity there is; None without findings."""
        return self.findings[0].severity if self.findings else None


async def examine(
    database: Database, app: App | None = None, *, patience_seconds: float = PATIENCE_SECONDS
) -> Report:
    """Look at everything; changes nothing. Without an app, brokers and policies are left out.

    What stands still for less than `patience_seconds` is not told. Never raises for what it finds.
    """
    checked, findings = ["database"], []
    marks: list[Watermark] = []
    try:
        findings += await check_pooler(database)
        findings += await _database(database, app, patience_seconds, marks)
    except DatabaseUnavailable as error:
        findings.append(found("database-unreachable", "database", str(error)))
    except (ConfigError, DatabaseError) as error:
        findings.append(found("database-refused", "database", str(error)))
    if app is not None:
        checked += ["brokers", "policies"]
        findings += await check_brokers(app.consumers.values(), marks)
        findings += await check_sinks(app.sinks)
        findings += check_policies(app)
    order = list(Severity)
    return Report(findings=sorted(findings, key=lambda each: -order.index(each.severity)), checked=checked)


async def _database(
    database: Database, app: App | None, patience_seconds: float, marks: list[Watermark]
) -> list[Finding]:
    """What there is to say of the database; `marks` is filled with the watermarks that are in it."""
    session = await database.connect_async(Settings())
    steps = database_steps(session)

    async def ask(op: Op[list[T]]) -> list[T]:
        return await run_async(op, lambda step: steps[type(step)](step))

    try:
        findings = [*await ask(check_server(database)), *await ask(check_schema(database))]
        if not any(each.code.startswith("schema-") for each in findings):
            findings += await ask(check_tables(database, patience_seconds))
            handled = app.handled_types() if app is not None else {}
            lapse = app.lapse_seconds if app is not None else LAPSE_SECONDS
            standing = check_standing(database.queries, list(handled), handled, patience_seconds, lapse)
            if not any(each.code == "rights-missing" for each in findings):
                findings += await ask(standing)
                marks += await ask(watermarks(database.queries))
    finally:
        await finished(session.close())
    return findings
