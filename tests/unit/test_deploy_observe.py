"""Dashboard and alerts against what is declared: names, labels, and words for every alert."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sessions_actor.meters import REGISTRY
from sessions_actor.telemetry import Counter, Histogram
from tests.fault.alerts import FAULTS, HEALED
from tests.promql import (
    ALERTS,
    CONFIG,
    DASHBOARD,
    DEPLOY,
    Query,
    alert_queries,
    alert_rules,
    dashboard_queries,
    prometheus,
)

QUERIES = [*dashboard_queries(), *alert_queries()]
ADDED = {"node", "role"}
"""Labels that every series has: the export adds them."""


def declared() -> dict[str, set[str]]:
    """Return every name that can be exported, with its labels."""
    found = {}
    for name, family in REGISTRY.families.items():
        labels = {*family.labels, *ADDED}
        if isinstance(family, Histogram):
            found[f"ray_{name}_bucket"] = labels | {"le"}
            found[f"ray_{name}_sum"] = found[f"ray_{name}_count"] = labels
        else:
            found[f"ray_{name}"] = labels
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_a_query_asks_for_what_is_declared(query: Query) -> None:
    known = declared()
    assert query.selectors
    of_all: set[str] = set()
    for selector in query.selectors:
        assert selector.metric in known
        assert {name for name, _, _ in selector.matchers} <= known[selector.metric]
        of_all |= known[selector.metric]
    assert query.grouped_by <= of_all
    assert query.text.count("(") == query.text.count(")")


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_what_only_rises_is_read_by_its_rate(query: Query) -> None:
    for selector in query.selectors:
        family = REGISTRY.families.get(selector.metric.removeprefix("ray_"))
        if family is None or isinstance(family, Counter):
            at = query.text.index(selector.metric)
            before = query.text[:at].rstrip()
            compared = "unless" in query.text and "offset" in query.text
            assert before.endswith(("rate(", "increase(")) or compared


def test_the_dashboard_shows_every_metric() -> None:
    shown = {s.metric for query in dashboard_queries() for s in query.selectors}
    for name, family in REGISTRY.families.items():
        names = {f"ray_{name}{end}" for end in ("", "_bucket", "_sum", "_count")}
        assert names & shown, f"no panel shows {name}"
        assert family.help


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert dashboard["uid"] == "sessions-actor"
    used = {
        target["datasource"]["uid"] for p in dashboard["panels"] for target in p.get("targets", [])
    }
    assert used == {"${datasource}"}
    rows: dict[int, int] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        rows[place["y"]] = rows.get(place["y"], 0) + place["w"]
    assert set(rows.values()) == {24}, "every row is filled"


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    text = (DEPLOY / "docs" / "alerts.md").read_text()
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", text, re.M)}
    names = [rule["alert"] for rule in alert_rules()]
    assert len(set(names)) == len(names)
    assert headings == {name.lower() for name in names}
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "deploy/docs/alerts.md"
        assert anchor == rule["alert"].lower()


def test_the_guide_has_a_row_for_every_fault_of_the_tests() -> None:
    text = (DEPLOY / "README.md").read_text()
    _, _, table = text.partition("| fault | alert | what to do |\n|---|---|---|\n")
    rows = {}
    for line in table.partition("\n\n")[0].splitlines():
        fault, alert, advice = (cell.strip() for cell in line.strip("|").split("|"))
        rows[fault] = set(re.findall(r"SessionsActor\w+", alert))
        assert advice
    assert rows == {**FAULTS, **{fault: set() for fault in HEALED}}
    tests = "".join(file.read_text() for file in (DEPLOY.parent / "tests").rglob("test_*.py"))
    assert all(f'raised("{fault}")' in tests for fault in FAULTS), "each is injected"


def test_the_guide_lists_every_metric() -> None:
    guide = (DEPLOY / "docs" / "watching.md").read_text()
    rows = {
        cells[0].strip("`"): cells[1:]
        for line in guide.splitlines()
        if line.startswith("| `sessions_actor_")
        and (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    assert set(rows) == set(REGISTRY.families)
    for name, (kind, labels, help) in rows.items():
        family = REGISTRY.families[name]
        assert kind == family.kind.value
        assert [label.strip(" `") for label in labels.split(",") if label] == list(family.labels)
        assert help == family.help


@pytest.mark.skipif(prometheus("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_files(tmp_path: Path) -> None:
    tool = prometheus("promtool")
    assert tool is not None
    # As a head that runs has it: promtool looks for the list of endpoints as well.
    listed = tmp_path / "endpoints.json"
    listed.write_text('[{"targets": ["10.0.0.1:8080"], "labels": {"job": "ray"}}]')
    shutil.copy(ALERTS, tmp_path)
    config = tmp_path / CONFIG.name
    text, count = re.subn(r"/tmp/ray/\S+\.json", str(listed), CONFIG.read_text())
    assert count == 1
    config.write_text(text)
    done = subprocess.run([tool, "check", "config", str(config)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(prometheus("promtool") is None, reason="promtool is not installed")
def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    tool = prometheus("promtool")
    assert tool is not None
    queries = dashboard_queries()
    rules = [{"record": f"panel:{i}", "expr": query.text} for i, query in enumerate(queries)]
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # is YAML too
    done = subprocess.run([tool, "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout
