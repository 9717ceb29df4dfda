"""How a process of a deployment tells what it does: metrics, logs and spans, set up once.

The router makes this of its settings and hands it to every process it starts. A process that was
given none (a script that uses the package by itself) sends nothing and stays silent.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, NamedTuple

from . import telemetry
from .logs import LogFormat, LogLevel, configure, log
from .metrics_export import MetricsExport


class Observing(NamedTuple):
    """The settings of a deployment that every one of its processes needs."""

    metrics: bool = True
    log_format: LogFormat = "json"
    log_level: LogLevel = "info"
    tracing: str | None = None


def set_up(observing: Observing, role: str, **context: Any) -> MetricsExport:
    """Set up this process; returns what sends its metrics, not begun yet.

    Args:
        role: what the process is: "router", "actor", "agent".
        context: fields of each of its events.
    """
    configure(log_format=observing.log_format, log_level=observing.log_level, role=role, **context)
    telemetry.record(observing.metrics)
    if observing.tracing is not None:
        _set_up_tracing(observing.tracing, role)
    return MetricsExport(role, enabled=observing.metrics)


def _set_up_tracing(reference: str, role: str) -> None:
    """Call the function that `module:function` names with the role; a failure costs the spans."""
    module, _, name = reference.partition(":")
    try:
        getattr(importlib.import_module(module), name)(role)
    except Exception as error:
        log(logging.ERROR, "tracing.failed", error=error)
