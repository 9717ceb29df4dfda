"""A process set up to tell what it does: by its settings, and harmed by none of them."""

import json
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from router import Settings
from sessions_actor.logs import LOGGER, log
from sessions_actor.metrics_export import MetricsExport
from sessions_actor.observing import Observing, set_up
from sessions_actor.telemetry import Counter, record

ROLES: list[str] = []


def note_role(role: str) -> None:
    """What `tracing` may name."""
    ROLES.append(role)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    handlers, level = list(LOGGER.handlers), LOGGER.level
    yield
    LOGGER.handlers[:] = handlers
    LOGGER.setLevel(level)
    LOGGER.propagate = True
    record(True)


def test_what_tracing_names_is_called_with_the_role() -> None:
    ROLES.clear()
    set_up(Observing(tracing=f"{__name__}:note_role"), "actor")
    assert ROLES == ["actor"]


@pytest.mark.parametrize("name", ["no_such_module_here:f", f"{__name__}:no_such_function"])
def test_tracing_that_fails_costs_the_spans_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    export = set_up(Observing(tracing=name), "router", node="n1")
    assert isinstance(export, MetricsExport)
    event = json.loads(capsys.readouterr().err)
    assert (event["event"], event["role"], event["node"]) == ("tracing.failed", "router", "n1")


def test_metrics_can_be_turned_off() -> None:
    counter = Counter("sessions_actor_things_total", "Things")
    set_up(Observing(metrics=False), "actor")
    counter.inc()
    assert counter.value() == 0
    set_up(Observing(), "actor")
    counter.inc()
    assert counter.value() == 1


def test_the_level_and_the_form_are_those_of_the_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Settings(log_format="console", log_level="error", tracing="myapp.spans:start")
    assert found.observing == Observing(True, "console", "error", "myapp.spans:start")
    set_up(found.observing._replace(tracing=None), "actor", node="n1")
    log(30, "gate.broken", conversation="alice")
    log(40, "gate.broken", conversation="bob")
    (line,) = capsys.readouterr().err.splitlines()
    assert "conversation=bob" in line
    assert "node=n1" in line


@pytest.mark.parametrize(
    "wrong",
    [
        {"tracing": "myapp"},
        {"tracing": "my-app:start"},
        {"tracing": "__main__:start"},
        {"log_level": "loud"},
        {"log_format": "xml"},
    ],
)
def test_what_cannot_be_is_refused_at_once(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Settings(**wrong)
