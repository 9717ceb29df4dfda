"""Logs of this package: events with fields, through the standard library's `logging`.

Rules:
- An event has a name and fields, never a sentence made of data. Only the fields in `FIELDS` pass:
  names, numbers, ids of nodes and actors. What a conversation holds is not among them.
- An error is told by its class and by where it was raised. Its text is told only for the errors
  of this package whose text is made of paths and numbers: any other may quote a message.
- Used as a library the package is silent until its user configures `logging`; the actors and the
  router of a deployment write to stderr, which Ray keeps in its session's log folder. structlog
  renders there: one JSON object a line for programs, or lines for people.

What it does not do: decide what is worth an event (`reports` does), or write files.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import IO, Any, Final, Literal

from . import errors

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

LOGGER: Final = logging.getLogger("sessions_actor")
LOGGER.addHandler(logging.NullHandler())

FIELDS: Final = frozenset(
    {
        *("conversation", "epoch", "node", "role", "actor", "pid", "state"),
        *("kind", "reason", "phase", "outcome", "method", "source", "type", "target_node"),
        *("seconds", "bytes", "quota_bytes", "messages", "count", "pending", "limit", "term"),
        *("nodes", "total", "moved", "failed", "presented", "current", "suppressed", "job"),
        *("router",),
        *("path", "disk", "lost_disk", "position", "ticket"),
        *("error", "error_text", "error_at"),
    }
)

# A name may hold a thousand characters, a path more.
TEXT_CHARS_MAX: Final = 2048

# Errors whose texts are made of paths, numbers and words of our own or of SQLite's, which quotes
# no values. A failed migration's and a remote call's text quotes whatever was raised.
_SAFE_TEXTS: Final = (
    errors.StorageError,
    errors.StaleEpochError,
    errors.MigratingError,
    errors.LeaseMissingError,
    errors.OverloadedError,
    errors.NoCapacityError,
    errors.OutputGateBrokenError,
    errors.ReplicaUnavailableError,
    errors.ConversationNotFoundError,
)


class Event:
    """What a log record holds as its message: a name, and fields that are safe to tell."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name, self.fields = name, fields

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value!r}" for key, value in self.fields.items())])


def log(level: int, name: str, **fields: Any) -> None:
    """Log an event. Cost: a look-up when nobody listens at that level.

    Args: `fields` are among FIELDS, any other is left out, as is None. `error` may be an
        exception.
    """
    if not LOGGER.isEnabledFor(level):
        return
    error = fields.get("error")
    if isinstance(error, BaseException):
        fields.update(described(error))
    LOGGER.log(
        level,
        Event(name, {k: _safe(v) for k, v in fields.items() if v is not None and k in FIELDS}),
    )


def described(error: BaseException) -> dict[str, str | None]:
    """Return what may be told of an error: its class, where it was raised, a text of our own."""
    kind = type(error)
    own = kind.__module__ == errors.__name__  # a subclass of someone else's may say anything
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return {
        "error": kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}",
        "error_text": str(error) if own and isinstance(error, _SAFE_TEXTS) else None,
        "error_at": f"{frames[0].filename}:{frames[0].lineno}" if frames else None,
    }


def _safe(value: Any) -> Any:
    """Bring a field to what every format can hold."""
    if isinstance(value, float):
        return round(value, 6)
    if value is None or isinstance(value, bool | int):
        return value
    # A name may hold what no terminal or log shipper should be given.
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return text[:TEXT_CHARS_MAX]


class _Fields:
    """Turns a log record of ours into an event with fields; a processor of structlog."""

    def __init__(self, context: dict[str, Any]) -> None:
        self._context = context

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        message = event["_record"].msg
        if not isinstance(message, Event):
            return event
        head = {"time": event.pop("time"), "level": event.pop("level"), "event": message.name}
        # What the event says of a field counts, not what the process is.
        return {**head, **self._context, **message.fields, **_meta(event)}


def _meta(event: Any) -> dict[str, Any]:
    return {key: event[key] for key in ("_record", "_from_structlog")}


def configure(
    *,
    log_format: LogFormat,
    log_level: LogLevel,
    stream: IO[str] | None = None,
    **context: Any,
) -> None:
    """Have this process write the package's events; called by the actors of a deployment.

    Configuring again replaces what was configured before.

    Args:
        stream: where to; stderr unless given.
        context: fields of every event, such as the node.
    """
    for handler in list(LOGGER.handlers):
        if not isinstance(handler, logging.NullHandler):
            LOGGER.removeHandler(handler)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(log_format, context))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(log_level.upper())
    LOGGER.propagate = False  # Ray's own handlers would write it a second time


def _formatter(log_format: LogFormat, context: dict[str, Any]) -> logging.Formatter:
    structlog = _load_structlog()
    shared = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _Fields({key: value for key, value in context.items() if value is not None}),
    ]
    if log_format == "json":
        render: Any = structlog.processors.JSONRenderer(sort_keys=False)
    else:
        render = structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
        )
    formatter: logging.Formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
    )
    return formatter


def _load_structlog() -> Any:
    # For tracebacks, which are never logged here, its console loads rich: 2 MB in every actor.
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        if hidden:
            del sys.modules["rich"]
    return structlog
