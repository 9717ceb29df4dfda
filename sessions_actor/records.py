"""What the operations return and the change feed carries: frozen, picklable records.

Nothing here does I/O; `message` values are plain JSON dicts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Final, Literal

from .messages import SessionMessage

Message = dict[str, Any]
"""A message as code that builds or reads any key of it sees it."""

ChangeType = Literal[
    "append", "update", "delete", "clear", "compact", "import", "compaction", "gap"
]

_ISO = re.compile(r"(\d{4}|[+-]\d{6})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{3})Z", re.ASCII)
_DAY_MS = 86_400_000
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAYS_IN_400_YEARS = 146_097


class Leaf(Enum):
    """The type of `LEAF`."""

    LEAF = "leaf"

    def __repr__(self) -> str:
        return "<leaf>"


LEAF: Final = Leaf.LEAF
"""Stands for a parent that was not given: the active leaf."""

Parent = str | None | Literal[Leaf.LEAF]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """An append or upsert: whether a row was inserted, and the message as stored."""

    inserted: bool
    message: SessionMessage


@dataclass(frozen=True, slots=True)
class RecentHistory:
    """The newest messages that fit a budget; `total_content_bytes` is that of the whole path."""

    messages: list[SessionMessage]
    truncated: bool
    total_content_bytes: int


@dataclass(frozen=True, slots=True)
class RowStat:
    """One row's stored bytes (slices and the payloads it points at) and its token estimate."""

    id: str
    role: str
    bytes: int
    token_estimate: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """A stored overlay; `created_at` is ISO 8601 in UTC with milliseconds."""

    id: str
    summary: str
    from_message_id: str
    to_message_id: str
    created_at: str


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction function returns: a summary and the range it stands for, ends included."""

    summary: str
    from_message_id: str
    to_message_id: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One message found, with its indexed text."""

    id: str
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One stored row of a session, whatever its branch; `created_at` is in milliseconds."""

    message: SessionMessage
    parent_id: str | None
    created_at: float
    seq: int


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """One committed change; only the fields its type speaks of are set.

    `parent_id` is the parent as asked for, `LEAF` when none was given.
    """

    type: ChangeType
    session_id: str
    message: SessionMessage | None = None
    parent_id: Parent = LEAF
    inserted: bool | None = None
    message_ids: Sequence[str] | None = None
    compaction: Compaction | None = None


def iso_from_ms(ms: float) -> str:
    """Return ISO 8601 in UTC with milliseconds, as JavaScript's `toISOString` writes it.

    Any finite time has a text: a year outside 0 to 9999 is written with a sign and six digits.
    """
    days, rest = divmod(int(ms), _DAY_MS)
    # The calendar repeats every 400 years, which brings any day into `date`'s range.
    cycles, day = divmod(days, _DAYS_IN_400_YEARS)
    day_of = date.fromordinal(_EPOCH_ORDINAL + day)
    year = day_of.year + 400 * cycles
    text = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+07d}"
    seconds, millis = divmod(rest, 1000)
    hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    return (
        f"{text}-{day_of.month:02d}-{day_of.day:02d}"
        f"T{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}Z"
    )


def ms_from_iso(text: str) -> int:
    """Return the milliseconds since the epoch that `iso_from_ms` wrote as text.

    Raises: ValueError for anything else than such a text.
    """
    match = _ISO.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"created_at: {text!r} is no time like 2026-01-31T12:00:00.000Z")
    year, month, day, hour, minute, second, millis = map(int, match.groups())
    cycles, year_of = divmod(year, 400)
    days = date(year_of + 400, month, day).toordinal() + (cycles - 1) * _DAYS_IN_400_YEARS
    seconds = (hour * 60 + minute) * 60 + second
    return (days - _EPOCH_ORDINAL) * _DAY_MS + seconds * 1000 + millis
