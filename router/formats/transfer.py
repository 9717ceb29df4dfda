"""Carries imported conversations into a deployment: in batches, several conversations at once.

Every message is checked before it is sent; what a deployment refuses is reported with its place,
and the rest goes on. Every write is idempotent by id, so an import may be repeated or resumed at
will.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sessions_actor.codec import dumps
from sessions_actor.errors import SessionsActorError, StorageError
from sessions_actor.messages import SessionMessage, validate_message
from sessions_actor.names import check_name
from sessions_actor.records import Compaction, HistoryRow

from .base import ConfigItem, ImportedConversation, Item, MessageItem, OverlayItem, Problem, Report

BATCH_ROWS_MAX = 256
BATCH_BYTES_MAX = 2 * 1024 * 1024
CONVERSATIONS_AT_ONCE = 8


class WritableSession(Protocol):
    """What an import asks of a session. Each returns how many were new."""

    async def import_messages(self, items: Sequence[HistoryRow]) -> int: ...

    async def import_compactions(self, overlays: Sequence[Compaction]) -> int: ...

    async def import_config(self, entries: Mapping[str, str]) -> int: ...


class WritableConversation(Protocol):
    """What an import asks of a conversation."""

    def session(self, session_id: str = "") -> WritableSession: ...

    async def session_ids(self) -> list[str]: ...


class Deployment(Protocol):
    """What an import asks of a client."""

    def get(self, name: str) -> WritableConversation: ...


@dataclass(slots=True)
class ImportSummary:
    """What an import came to; `new` counts the messages that were not there before."""

    conversations: int = 0
    messages: int = 0
    new: int = 0
    overlays: int = 0

    def __add__(self, other: "ImportSummary") -> "ImportSummary":
        return ImportSummary(
            self.conversations + other.conversations,
            self.messages + other.messages,
            self.new + other.new,
            self.overlays + other.overlays,
        )


Progress = Callable[[ImportSummary], None]


async def import_conversations(
    deployment: Deployment,
    conversations: Iterable[ImportedConversation],
    *,
    report: Report,
    name: str | None = None,
    progress: Progress | None = None,
    at_once: int = CONVERSATIONS_AT_ONCE,
) -> ImportSummary:
    """Import conversations one after the other, writing several at once.

    Args: `name` stands in for the name of a file's only conversation; further ones are reported.
    Returns: the sum, after everything written is durable.
    Cost: memory for `at_once` batches.
    """
    summary = ImportSummary()
    runner = _Runner(deployment, summary, report, progress, asyncio.Semaphore(at_once))
    async with asyncio.TaskGroup() as group:
        for conversation in _guarded(conversations, runner):
            target = name or conversation.name
            if name and summary.conversations:
                runner.problem(conversation.name, "the file holds more than one conversation")
                continue
            try:
                check_name(target)
            except ValueError as error:
                runner.problem(repr(conversation.name), str(error))
                continue
            summary.conversations += 1
            writer = _Writer(target, runner)
            try:
                async for item in _each(conversation.items):
                    writer.add(item)
                    if writer.full:
                        async with runner.slots:
                            await writer.flush()
            except (OSError, ValueError, StorageError) as error:
                writer.cut_short(error)
            await runner.slots.acquire()
            group.create_task(writer.finish())
    return summary


def _guarded(
    conversations: Iterable[ImportedConversation], runner: "_Runner"
) -> Iterator[ImportedConversation]:
    """End, with a report, where the file itself cannot be read on."""
    try:
        yield from conversations
    except (OSError, ValueError) as error:
        runner.problem("", str(error))


async def _each(items: Iterator[Item] | AsyncIterator[Item]) -> AsyncIterator[Item]:
    if isinstance(items, AsyncIterator):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


@dataclass(slots=True)
class _Runner:
    deployment: Deployment
    summary: ImportSummary
    report: Report
    progress: Progress | None
    slots: asyncio.Semaphore

    def problem(self, place: str, reason: str, conversation: str | None = None) -> None:
        self.report(Problem(place, reason, conversation))

    def moved(self) -> None:
        if self.progress is not None:
            self.progress(self.summary)


class _Writer:
    """Collects one conversation's items and writes them, a batch at a time."""

    def __init__(self, name: str, runner: _Runner) -> None:
        self._name, self._runner = name, runner
        self._target = runner.deployment.get(name)
        self._messages: dict[str, list[MessageItem]] = {}
        self._others: list[OverlayItem | ConfigItem] = []
        self._rows = self._bytes = 0
        self._written = self._failed = self._is_cut = False

    @property
    def full(self) -> bool:
        """Whether enough has been collected for a round trip."""
        return self._rows >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def add(self, item: Item) -> None:
        """Take an item, or report why it cannot be stored."""
        if not isinstance(item, MessageItem):
            self._others.append(item)
            self._rows += 1
            return
        try:
            validate_message(item.message)
            size = len(dumps(item.message))
        except (ValueError, TypeError) as error:
            self._refuse(item.place, error)
            return
        self._messages.setdefault(item.session, []).append(item)
        self._rows += 1
        self._bytes += size

    def cut_short(self, error: Exception) -> None:
        """Report that the source ends here; what came before is written."""
        self._refuse("", error)
        self._is_cut = True

    async def flush(self) -> None:
        """Write what was collected."""
        messages, others = self._messages, self._others
        self._messages, self._others, self._rows, self._bytes = {}, [], 0, 0
        if self._failed:
            return
        try:
            for session_id, items in messages.items():
                await self._import_messages(session_id, items)
            for item in others:
                await self._import_other(item)
        except (SessionsActorError, TimeoutError) as error:
            self._failed = True
            self._refuse(f"conversation {self._name!r}", error)
        self._runner.moved()

    async def finish(self) -> None:
        """Write the last batch, and make the conversation even if it holds nothing."""
        try:
            await self.flush()
            if not self._written and (self._failed or self._is_cut):
                self._runner.summary.conversations -= 1
            elif not self._written:
                await self._target.session_ids()
        finally:
            self._runner.slots.release()

    async def _import_messages(self, session_id: str, items: list[MessageItem]) -> None:
        session, summary = self._target.session(session_id), self._runner.summary
        try:
            new = await session.import_messages([_row(item) for item in items])
        except (ValueError, TypeError):
            # The batch is all or nothing: one by one shows which of them is refused.
            new = 0
            for item in items:
                try:
                    new += await session.import_messages([_row(item)])
                except (ValueError, TypeError) as error:
                    self._refuse(item.place, error)
                    summary.messages -= 1
        summary.messages += len(items)
        summary.new += new
        self._written = True

    async def _import_other(self, item: OverlayItem | ConfigItem) -> None:
        session = self._target.session(item.session)
        try:
            if isinstance(item, OverlayItem):
                self._runner.summary.overlays += await session.import_compactions([item.overlay])
            else:
                await session.import_config({item.key: item.value})
        except (ValueError, TypeError) as error:
            self._refuse(item.place, error)
        self._written = True

    def _refuse(self, place: str, error: Any) -> None:
        self._runner.problem(place, str(error), self._name)


def _row(item: MessageItem) -> HistoryRow:
    message = cast(SessionMessage, item.message)  # checked when it was added
    return HistoryRow(message, item.parent_id, item.created_at, seq=0)
