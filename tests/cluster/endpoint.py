"""What the nodes of the cluster that a test is in show at their metrics endpoints."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def endpoints() -> list[str]:
    """Return the address of each live node's endpoint."""
    import ray

    return [
        f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in ray.nodes()
        if node["Alive"]
    ]


def read(address: str, timeout_s: float = 10) -> Series:
    """Read the product's series from one node."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=timeout_s) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("ray_sessions_actor_")
    }


def scrape() -> Series:
    """Read the product's series from every node."""
    found: Series = {}
    for address in endpoints():
        found |= read(address)
    return found


def total(series: Series, name: str, **labels: str) -> float:
    """Add up the series of a name that have these labels."""
    wanted = set(labels.items())
    return sum(
        value for (found, have), value in series.items()
        if found == f"ray_sessions_actor_{name}" and wanted <= have
    )  # fmt: skip
