"""What the callers of a simulation know of a conversation, and what they may therefore expect.

Every message belongs to one writer, who asks one thing of it at a time: what is stored under its
id is what he was last told, or, while he waits or was told nothing, one of two things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(eq=False)
class Record:
    """One message: the texts it may hold (None: it is absent), and how often that changed."""

    writer: str
    number: int
    may: tuple[str | None, ...] = (None,)
    version: int = 0
    open: bool = True
    ordered: bool = True

    def begin(self, text: str | None) -> None:
        """Note that its writer asks for something."""
        assert len(self.may) == 1
        self.may = (self.may[0], text)
        self.version += 1

    def abandon(self) -> None:
        """Note that he was told nothing, and asks nothing more: it may be done later."""
        self.open = self.ordered = False
        self.version += 1

    def acknowledge(self) -> None:
        """Note that he was told that it is done."""
        self.may = self.may[1:]
        self.version += 1


Known = list[tuple[str, Record, int, str | None]]


@dataclass(eq=False)
class Model:
    """The messages of one session of one conversation."""

    name: str
    session: str = ""
    records: dict[str, Record] = field(default_factory=dict)
    certain: bool = True
    """False once it was deleted and nobody knows whether that happened."""

    def known(self) -> Known:
        """Return what is certain at this moment."""
        return [
            (key, record, record.version, record.may[0])
            for key, record in self.records.items()
            if len(record.may) == 1
        ]

    def check_read(self, known: Known, seen: Iterable[Mapping[str, Any]], *, whole: bool) -> None:
        """Hold a read against what was certain all the while.

        Args: `whole` says that what was not read is absent.
        Raises: Violation.
        """
        texts: dict[str, str] = {}
        last: dict[str, int] = {}
        for message in seen:
            key, text = message["id"], text_of(message)
            record = self.records.get(key)
            if record is None:
                raise Violation(f"{self.name}: {key} was never written")
            if key in texts:
                raise Violation(f"{self.name}: {key} is there twice")
            if record.ordered and last.get(record.writer, -1) > record.number:
                raise Violation(f"{self.name}: {key} stands before an earlier one of its writer")
            texts[key] = text
            if record.ordered:
                last[record.writer] = record.number
        for key, record, version, text in known:
            if record.version != version or (key not in texts and not whole):
                continue
            if texts.get(key) != text:
                raise Violation(
                    f"{self.name}: {key} is {short(texts.get(key))}, acknowledged {short(text)}"
                )

    def check_all(self, seen: Iterable[Mapping[str, Any]]) -> None:
        """Hold everything that is stored, in write order, against all that may be.

        Raises: Violation.
        """
        seen = list(seen)
        self.check_read(self.known(), seen, whole=True)
        texts = {message["id"]: text_of(message) for message in seen}
        for key, record in self.records.items():
            if texts.get(key) not in record.may:
                may = ", ".join(map(short, record.may))
                raise Violation(f"{self.name}: {key} is {short(texts.get(key))}, none of {may}")


def short(text: str | None) -> str:
    """Return a text in few characters, its end shown: updates are added there."""
    if text is None:
        return "absent"
    return text if len(text) < 24 else f"{len(text)} characters to {text[-16:]}"


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message made by `message_of`."""
    text: str = message["parts"][0]["text"]
    return text


def message_of(key: str, text: str) -> dict[str, Any]:
    """Make a message."""
    return {"id": key, "role": "user", "parts": [{"type": "text", "text": text}]}
