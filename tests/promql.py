"""Queries of the dashboard and the alerts, and what they ask for. Small, and only what is needed.

It finds the series that a query selects and the labels it groups by, so that a test can look for
them among what the endpoint shows. Evaluating is left to Prometheus' own tools, where they are.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"

_SELECTOR = re.compile(r"\b(ray_[a-z0-9_]+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")

# What Grafana puts in for its variables.
_VARIABLES = {"$__rate_interval": "1m", "$__interval": "15s", "$node": ".*"}


@dataclass(frozen=True)
class Selector:
    """One metric that a query reads, and the labels it must have."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]

    def matches(self, labels: dict[str, str]) -> bool:
        """Say whether a series with these labels is selected; each label must be there."""
        for name, operator, value in self.matchers:
            if name not in labels:
                return False
            pattern = value if "~" in operator else re.escape(value)
            if bool(re.fullmatch(pattern, labels[name])) is operator.startswith("!"):
                return False
        return True


@dataclass(frozen=True)
class Query:
    """One query, and where it stands."""

    where: str
    text: str
    legend: str = ""

    @property
    def selectors(self) -> list[Selector]:
        """The metrics it reads."""
        return [
            Selector(name, tuple(_MATCHER.findall(inside)))
            for name, inside in _SELECTOR.findall(self.text)
        ]

    @property
    def grouped_by(self) -> set[str]:
        """Labels that its result must have: it groups by them, or the legend shows them."""
        groups = {
            name.strip() for group in _GROUPING.findall(self.text) for name in group.split(",")
        }
        return groups | set(_LEGEND.findall(self.legend))


def _filled(text: str) -> str:
    for variable, value in _VARIABLES.items():
        text = text.replace(variable, value)
    return text


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def dashboard_queries() -> list[Query]:
    """Return every query of the dashboard, those of its variables included."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [
        Query(f"dashboard: {panel['title']}", _filled(target["expr"]), target["legendFormat"])
        for panel in _panels(dashboard)
        for target in panel.get("targets", ())
    ]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(
                r"label_values\((\w+), (\w+)\)", variable["query"]["query"]
            ).groups()  # type: ignore[union-attr]
            where = f"dashboard: variable {variable['name']}"
            found.append(Query(where, f"group by ({label}) ({metric})"))
    return found


def alert_rules() -> list[dict[str, Any]]:
    """Return every alert."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_queries() -> list[Query]:
    """Return the query of every alert."""
    return [Query(f"alert: {rule['alert']}", rule["expr"]) for rule in alert_rules()]


def prometheus(tool: str) -> str | None:
    """Return the path of `prometheus` or `promtool`, when it is installed."""
    return shutil.which(tool)


_SEEN = re.compile(r'\{alertname="(\w+)", alertstate="(\w+)"\}')
# What ALERTS is asked for; each timeline is told apart by the number that it adds.
_ASKED = "sum by (alertname, alertstate) ({of}) + {number}"


def alerts_of(
    timelines: Sequence[Mapping[str, str]], every_s: int, at_s: int, *, ever: bool = False
) -> list[set[tuple[str, str]]]:
    """Have promtool evaluate every alert over series, as a Prometheus would; in one run.

    Args: a timeline has, for each series, its values as promtool writes them, `every_s` apart.
        `ever` asks what was so at any moment until `at_s`, not then alone.
    Returns: for each timeline the alerts whose expression holds and their state: `pending` while
        they wait for their `for`, or `firing`.
    """
    tool = prometheus("promtool")
    assert tool is not None
    of = "count_over_time(ALERTS[1d])" if ever else "ALERTS"
    tests = [
        {
            "interval": f"{every_s}s",
            "input_series": [{"series": name, "values": values} for name, values in one.items()],
            # What is expected is nothing: then promtool prints what it got.
            "promql_expr_test": [
                {"expr": _ASKED.format(of=of, number=number), "eval_time": f"{at_s}s"}
            ],
        }
        for number, one in enumerate(timelines)
    ]
    rules = {"rule_files": [str(ALERTS)], "evaluation_interval": f"{every_s}s", "tests": tests}
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump(rules, file)
        file.flush()
        done = subprocess.run([tool, "test", "rules", file.name], capture_output=True, text=True)
    found: list[set[tuple[str, str]]] = [set() for _ in timelines]
    number = None
    for line in (done.stdout + done.stderr).splitlines():
        if asked := re.search(r'expr: "sum by .* \+ (\d+)", time:', line):
            number = int(asked[1])
        elif line.lstrip().startswith("got:") and number is not None:
            found[number] = set(_SEEN.findall(line))
        else:
            assert "error" not in line.lower(), line
    assert (done.returncode == 0) is not any(found), done.stdout + done.stderr
    return found
