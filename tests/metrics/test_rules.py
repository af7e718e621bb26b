"""What is shipped for operators fits the metrics there are: rules, dashboard, runbook and manual."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oncebox.metrics.figures import METRICS
from tests.conftest import missing
from tests.servers import Unavailable

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "operations"
RULES = (OPERATIONS / "alerts.yml").read_text()
ALERTS = re.findall(r"- alert: (\w+)", RULES)


def promtool(*words: str) -> str:
    if shutil.which("promtool") is None:
        missing(Unavailable("Prometheus: no promtool was found"))
    done = subprocess.run(
        ["promtool", *words], cwd=OPERATIONS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(text: str) -> set[str]:
    """The metrics that a text speaks of."""
    found = set(re.findall(r"\boncebox_[a-z_]+", text))
    return {re.sub(r"(seconds)_(bucket|sum|count)$", r"\1", name) for name in found}


def test_prometheus_takes_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", "alerts.yml")


def test_each_alert_is_raised_when_it_should_be_and_not_otherwise() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")
    tested = (OPERATIONS / "alerts_test.yml").read_text()
    for alert in ALERTS:
        assert f"alertname: {alert}}}" in tested, f"{alert} is not tested to stay quiet"
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts:", tested), (
            f"{alert} is not tested to be raised"
        )


def test_each_alert_leads_to_a_page_of_the_runbook_and_each_page_to_an_alert() -> None:
    pages = re.findall(r"runbook_url: (\S+)", RULES)
    titles = [(ROOT / page).read_text().splitlines()[0] for page in pages]
    assert titles == [f"# {alert}" for alert in ALERTS]
    assert {ROOT / page for page in pages} == set((ROOT / "docs/runbook").glob("*.md"))


def test_rules_and_dashboard_ask_only_for_metrics_that_there_are() -> None:
    dashboard = (OPERATIONS / "dashboard.json").read_text()
    assert names(RULES) <= METRICS.keys()
    assert names(dashboard) <= METRICS.keys()


def test_the_dashboard_shows_every_metric() -> None:
    document = json.loads((OPERATIONS / "dashboard.json").read_text())
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))
    shown = {name for expression in expressions(document) for name in names(expression)}
    assert METRICS.keys() - shown == {"oncebox_effect_handlers"}


def test_prometheus_understands_what_the_dashboard_asks_for(tmp_path: Path) -> None:
    document = json.loads((OPERATIONS / "dashboard.json").read_text())
    rules = [
        {"record": f"panel:{n}", "expr": expression.replace("$__rate_interval", "5m")}
        for n, expression in enumerate(expressions(document))
    ]
    file = tmp_path / "rules.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(file))


def expressions(document: Any) -> list[str]:
    return [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("name", METRICS)
def test_each_metric_is_in_the_manual(name: str) -> None:
    manual = (ROOT / "docs/how-to/operate.md").read_text()
    assert f"| `{name}" in manual
