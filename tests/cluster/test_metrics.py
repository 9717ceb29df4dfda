"""The endpoint of a real cluster: what was done is counted, every query finds its series."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import ALERTS, Query, alert_queries, dashboard_queries, prometheus

from .conftest import Deploy, message, until
from .endpoint import Series, endpoints, scrape, total

QUERIES = [*dashboard_queries(), *alert_queries()]

# Shown only where replication is turned on.
ELSEWHERE = {
    "ray_sessions_actor_replication_lag_seconds",
    "ray_sessions_actor_replica_sync_seconds_bucket",
}


async def work(client: Any, target: str) -> None:
    """Do something of everything that is counted."""
    session = client.get("alice").session()
    for i in range(20):
        await session.append_message(message(f"m{i}"))
    assert [m["id"] async for m in session.history()][-1] == "m19"
    with pytest.raises(AttributeError):
        await client.get("alice").call("nothing_of_this_name")
    await client.hibernate("alice")
    await session.append_message(message("m20"))
    await client.migrate("alice", target)
    await session.append_message(message("m21"))


async def test_what_was_done_is_counted(deploy: Deploy, three_nodes: dict[str, str]) -> None:
    before = scrape()

    def rise(name: str, **labels: str) -> float:
        # Series of processes that ended go from the endpoint: none of them counts as a fall.
        rises = {key: value - before.get(key, 0.0) for key, value in now.items()}
        return total(rises, name, **labels)

    expected = {
        ("calls_total", "method", "append_message"): 22,
        ("calls_total", "outcome", "error"): 1,
        ("errors_total", "type", "AttributeError"): 1,
        ("call_seconds_count", "access", "write"): 22,
        ("call_seconds_bucket", "le", "+Inf"): None,
        ("commit_seconds_count", "role", "actor"): None,
        ("rows_written_total", "role", "actor"): None,
        ("activations_total", "kind", "new"): 1,
        ("activations_total", "kind", "wake"): 1,
        ("hibernations_total", "reason", "asked"): 1,
        ("migrations_total", "outcome", "moved"): 1,
        ("migration_stall_seconds_count", "role", "router"): 1,
        ("activation_seconds_count", "kind", "wake"): 1,
        ("lease_renewals_total", "outcome", "granted"): None,
        ("actors_started_total", "outcome", "ok"): None,
        ("events_total", "type", "session:message:appended"): 22,
    }
    async with deploy(warm_actors=1) as client:
        await work(client, three_nodes["apart"])

        def is_counted() -> bool:
            nonlocal now
            now = scrape()
            lacking[:] = [
                (name, label, value)
                for (name, label, value), count in expected.items()
                if rise(name, **{label: value}) < (1 if count is None else count)
            ]
            return not lacking

        now, lacking = before, list(expected)
        try:
            await until(is_counted, "everything that was done is counted", 60)
        except AssertionError:
            pytest.fail(f"not counted: {lacking}")
        for (name, label, value), count in expected.items():
            if count is not None:
                assert rise(name, **{label: value}) == count, (name, label, value)
        assert total(now, "conversations", state="active") == 1
        assert total(now, "conversation_bytes") > 0
        assert 0 < total(now, "quota_used_ratio") < 0.01
        assert (
            0
            < total(now, "disk_free_bytes", role="router")
            < total(now, "disk_size_bytes", role="router")
        )
        ratios = [v for (n, _), v in now.items() if n.endswith("lease_remaining_ratio")]
        assert len(ratios) == 3
        assert all(0 <= ratio <= 1 for ratio in ratios)
        assert_no_names(now)
        missing = [f"{q.where}: {why}" for q in QUERIES if (why := lacks(q, now))]
        assert missing == []


def assert_no_names(series: Series) -> None:
    """Conversations are no labels: there may be millions."""
    for _, labels in series:
        assert "alice" not in {value for _, value in labels}


def lacks(query: Query, series: Series) -> str:
    """Say what a query asks for that the endpoint does not show; nothing when it has all."""
    by_name: dict[str, list[dict[str, str]]] = defaultdict(list)
    for name, labels in series:
        by_name[name].append(dict(labels))
    labels_of_all: set[str] = set()
    for selector in query.selectors:
        if selector.metric in ELSEWHERE:
            return ""
        found = [labels for labels in by_name[selector.metric] if selector.matches(labels)]
        if not found:
            return f"no series of {selector}"
        labels_of_all |= found[0].keys()
    left = query.grouped_by - labels_of_all
    return f"no labels {left}" if left else ""


# ------------------------------------------------------------------------ a real Prometheus


@contextmanager
def running_prometheus(folder: Path) -> Iterator[str]:
    """Run a Prometheus of our own on the cluster's endpoints, with the alerts of the deployment."""
    tool = prometheus("prometheus")
    assert tool is not None
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "ray", "static_configs": [{"targets": endpoints()}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = "127.0.0.1:" + str(free_port())
    process = subprocess.Popen(
        [
            tool, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}", "--log.level=error",
        ]
    )  # fmt: skip
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def ask(base: str, path: str, **params: str) -> Any:
    """Ask Prometheus; None while it is not there yet."""
    try:
        url = f"{base}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) and error.code == 400:
            raise AssertionError(f"{params}: {error.read().decode()}") from None
        return None


@pytest.mark.skipif(prometheus("prometheus") is None, reason="prometheus is not installed")
async def test_a_real_prometheus_evaluates_every_query(
    deploy: Deploy, three_nodes: dict[str, str], tmp_path: Path, long_run: bool
) -> None:
    if not long_run:
        pytest.skip("promtool checks the queries' syntax; a Prometheus of our own: --long")
    async with deploy(warm_actors=1) as client:
        await work(client, three_nodes["apart"])
        with running_prometheus(tmp_path) as base:
            probe = 'ray_sessions_actor_calls_total{method="append_message"}'

            def is_scraped() -> bool:
                return bool((ask(base, "query", query=probe) or {}).get("result"))

            await until(is_scraped, "Prometheus has scraped the cluster", 60)
            for query in QUERIES:
                assert ask(base, "query", query=query.text) is not None, query.where

            def are_rules_evaluated() -> bool:
                groups = (ask(base, "rules") or {"groups": []})["groups"]
                rules = [rule for group in groups for rule in group["rules"]]
                assert not [rule for rule in rules if rule["health"] == "err"]
                return bool(rules) and all(rule["health"] == "ok" for rule in rules)

            await until(are_rules_evaluated, "every alert is evaluated", 60)
