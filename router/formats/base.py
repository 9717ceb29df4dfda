"""What an importer gives and an exporter takes, and how trouble in a file is reported.

An importer is a generator of conversations over a `Source`; it reads forwards, and each
conversation's items must be taken before the next one is asked for. Nothing here talks to a
deployment.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sessions_actor.records import Compaction, Message

from .source import Source


@dataclass(frozen=True, slots=True)
class MessageItem:
    """One message to import; `place` says where it stands in the file, `created_at` is in ms."""

    session: str
    message: Message
    parent_id: str | None
    created_at: float
    place: str


@dataclass(frozen=True, slots=True)
class OverlayItem:
    """One overlay to import under its own id and time."""

    session: str
    overlay: Compaction
    place: str


@dataclass(frozen=True, slots=True)
class ConfigItem:
    """One entry of a session's configuration; `value` is text, JSON where we write it."""

    session: str
    key: str
    value: str
    place: str


Item = MessageItem | OverlayItem | ConfigItem


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """A conversation found in a file: its name and its items, parents before their children."""

    name: str
    items: Iterator[Item] | AsyncIterator[Item]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that was not imported: where it stands, and why.

    A `harmless` one is no fault of the file: it is said, and not counted.
    """

    place: str
    reason: str
    conversation: str | None = None
    harmless: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


Report = Callable[[Problem], None]


@dataclass(slots=True)
class Reader:
    """What every importer is handed: the file, where to report trouble, and the time (ms) of
    messages that carry none."""

    source: Source
    report: Report
    created_at: int = 0
    problems: int = field(default=0, init=False)

    def problem(self, place: str, reason: object, conversation: str | None = None) -> None:
        """Report one thing that is not imported."""
        self.problems += 1
        self.report(Problem(f"{self.source.label}, {place}", str(reason), conversation))

    def note(self, place: str, reason: str) -> None:
        """Say that something is not imported and need not be."""
        self.report(Problem(f"{self.source.label}, {place}", reason, harmless=True))


Importer = Callable[[Reader], Iterator[ImportedConversation]]


def ms_from_iso(text: object) -> int | None:
    """Return milliseconds since 1970 for an ISO 8601 time, None for anything else.

    A time without a zone is UTC.
    """
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000 + 0.5)


def ms_from_seconds(value: object) -> int | None:
    """Return milliseconds for seconds since 1970, None for anything that is no sensible time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -1e11 < value < 1e11:
        return None
    return int(value * 1000 + 0.5)


def without(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return a copy of an object without some keys, order kept."""
    return {key: held for key, held in value.items() if key not in keys}


def unparsed(error: ValueError, *, ended: bool) -> str:
    """Say why a line was not read; `ended` is False for a last line without its line feed."""
    cut = "" if ended else " (the file ends inside this line: is it cut off?)"
    return f"not JSON: {error}{cut}"
