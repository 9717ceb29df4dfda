"""Events: their form, what they may hold, and silence where nobody asked for them."""

import ast
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import errors, reports
from sessions_actor.logs import FIELDS, LOGGER, TEXT_CHARS_MAX, configure, described, log

ROOT = Path(__file__).resolve().parents[2]
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    handlers, level, propagate = list(LOGGER.handlers), LOGGER.level, LOGGER.propagate
    yield
    LOGGER.handlers[:] = handlers
    LOGGER.setLevel(level)
    LOGGER.propagate = propagate


@pytest.fixture
def lines() -> Lines:
    """Write events as JSON into memory; returns how to read them."""
    stream = io.StringIO()
    configure(log_format="json", log_level="debug", stream=stream, role="actor", node="n1")
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_time_level_and_context(lines: Lines) -> None:
    log(logging.WARNING, "gate.broken", conversation="alice", epoch=3, seconds=0.12345678)
    (event,) = lines()
    assert list(event) == [
        *("time", "level", "event", "role", "node", "conversation", "epoch", "seconds")
    ]
    assert event["time"].endswith("Z")
    assert event | {"time": ""} == {
        "time": "", "level": "warning", "event": "gate.broken", "role": "actor", "node": "n1",
        "conversation": "alice", "epoch": 3, "seconds": 0.123457,
    }  # fmt: skip


def test_what_the_event_says_counts_more_than_the_context(lines: Lines) -> None:
    log(logging.INFO, "actor.started", node="n2")
    assert lines()[0]["node"] == "n2"


def test_people_get_lines(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure(log_format="console", log_level="info", stream=stream, node="n1")
    log(logging.DEBUG, "conversation.opened", conversation="alice")
    log(logging.INFO, "conversation.activated", conversation="alice", epoch=1)
    (line,) = stream.getvalue().splitlines()
    assert "conversation.activated" in line
    assert "conversation=alice" in line
    assert "\x1b" not in line


def test_the_least_level_is_that_of_the_settings() -> None:
    stream = io.StringIO()
    configure(log_format="json", log_level="warning", stream=stream)
    log(logging.INFO, "conversation.activated", conversation="alice")
    log(logging.WARNING, "conversation.owner_lost", conversation="alice")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "conversation.owner_lost"


def test_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(log_format="json", log_level="info", stream=first)
    configure(log_format="json", log_level="info", stream=second)
    log(logging.INFO, "router.started")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_a_field_that_is_not_listed_is_left_out(lines: Lines) -> None:
    log(logging.INFO, "call.failed", text="Hello", conversation="alice", epoch=None)
    assert "text" not in lines()[0]
    assert "epoch" not in lines()[0]
    assert not {"text", "message", "content", "parts", "args"} & FIELDS


def test_every_event_of_the_sources_has_a_name_and_listed_fields() -> None:
    """What is left out at run time is a mistake where it was written."""
    calls = 0
    for path in [*ROOT.glob("sessions_actor/**/*.py"), *ROOT.glob("router/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _called(node) in ("log", "_log"):
                calls += 1
                given = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                assert given <= FIELDS, f"{path}:{node.lineno}: {given - FIELDS}"
                if isinstance(node.args[1], ast.Constant):
                    assert re.fullmatch(r"[a-z]+\.[a-z_]+", str(node.args[1].value))
    assert calls > 20


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_names_cannot_break_a_line_or_the_encoding(lines: Lines) -> None:
    log(logging.INFO, "conversation.activated", conversation='a\n{"event": "forged"}\x1b[31m')
    log(logging.INFO, "conversation.activated", conversation="half an emoji \ud83d")
    log(logging.INFO, "conversation.activated", conversation="x" * 10 * TEXT_CHARS_MAX)
    first, second, third = lines()
    assert first["conversation"] == 'a\n{"event": "forged"}\x1b[31m'
    assert second["conversation"] == "half an emoji \\ud83d"
    assert len(third["conversation"]) == TEXT_CHARS_MAX


def test_console_lines_cannot_be_forged_by_a_name() -> None:
    stream = io.StringIO()
    configure(log_format="console", log_level="info", stream=stream)
    log(logging.INFO, "conversation.activated", conversation="a\nforged\x1b[31m")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


class SecretError(Exception):
    """An error of someone else, whose text quotes what it was about."""


class OwnStorageError(errors.StorageError):
    """A subclass by someone else, whose text says what it likes."""

    def __str__(self) -> str:
        return "the secret"


@pytest.mark.parametrize(
    "error",
    [
        SecretError("the secret"),
        ValueError("message.parts: the secret"),
        errors.RemoteCallError("SecretError", "the secret"),
        errors.MigrationFailedError("alice", "copy", "SecretError: the secret"),
        OwnStorageError("/data/file", "the secret"),
    ],
)
def test_the_text_of_an_error_that_may_quote_stays_out(lines: Lines, error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        log(logging.ERROR, "call.failed", error=raised)
    (event,) = lines()
    assert "secret" not in json.dumps(event).replace("SecretError", "")
    assert type(error).__name__ in event["error"]
    assert event["error_at"].startswith(__file__)


def test_the_text_of_an_error_of_ours_is_told() -> None:
    error = errors.QuotaExceededError(900, 1000, "/data/alice.sqlite")
    told = described(error)
    assert told["error"] == "QuotaExceededError"
    assert told["error_text"] == str(error)
    assert told["error_at"] is None


def test_the_same_error_is_logged_once_in_a_while(lines: Lines) -> None:
    before = reports._limiter
    reports._limiter = reports._Limiter()
    try:
        for _ in range(1000):
            reports.call_failed("alice", 1, "append_message", SecretError("x"))
        reports.call_failed("alice", 1, "search", SecretError("x"))
    finally:
        reports._limiter = before
    found = [(event["event"], event["method"]) for event in lines()]
    assert found.count(("call.failed", "search")) == 1
    assert 1 <= found.count(("call.failed", "append_message")) <= 10, "one a second"


def test_who_comes_again_is_no_trouble(lines: Lines) -> None:
    reports.call_failed("alice", 1, "", errors.StaleEpochError(1, 2))
    reports.call_failed("alice", 1, "", errors.OverloadedError(5, 5))
    reports.call_failed("alice", 1, "", errors.ReplicaUnavailableError("no answer", 5.0))
    assert [event["level"] for event in lines()] == ["debug", "warning", "warning"]


def test_the_library_is_silent_until_someone_listens() -> None:
    code = """
import asyncio, sys, tempfile
from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from sessions_actor.logs import log
async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with open_object(Conversation, name="alice", path=folder + "/a.sqlite") as alice:
            await alice.session.append_message({"id": "m", "role": "user", "parts": []})
    log(50, "gate.broken", conversation="alice")
asyncio.run(main())
assert "structlog" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_user_of_the_library_hears_events_through_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    LOGGER.propagate = True
    with caplog.at_level(logging.INFO, "sessions_actor"):
        log(logging.INFO, "conversation.activated", conversation="alice", epoch=1)
    assert caplog.messages == ["conversation.activated conversation='alice' epoch=1"]


def test_an_actor_does_not_load_what_it_does_not_need() -> None:
    """`rich` is 2 MB in every actor; structlog would load it for tracebacks."""
    code = (
        "import sys, sessions_actor.actor;"
        "from sessions_actor.logs import configure;"
        "configure(log_format='json', log_level='info');"
        "sys.exit('rich' in sys.modules or 'structlog' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
