"""Remote handles: the methods of a conversation and its sessions, wherever the caller runs.

A handle is a name and a resolver: it does no I/O until a method is awaited, pickles, and works in
any process that reaches the cluster, in Ray tasks and actors too. The methods are those of
`Session` and mean the same; a message that is stored as it was given comes back as the caller's
own object.

Source: specification, "Write messages" to "Compaction".
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from . import wire
from .channel import Channel, Resolver
from .codec import dumps
from .limits import WINDOW_BYTES_MAX, WINDOW_ROWS_MAX
from .messages import SessionMessage, validate_message
from .names import check_name
from .reader import (
    FROM_THE_ROOT,
    NEWEST_FIRST,
    WHOLE,
    ChangeStream,
    decode,
    decode_each,
    is_message,
    windows,
)
from .records import (
    LEAF,
    AppendResult,
    Compaction,
    CompactResult,
    HistoryRow,
    Parent,
    RecentHistory,
    RowStat,
    SearchResult,
)
from .wire import LoadedWindow

_NO_ARGS = wire.dump_args([], {}, [])

ImportItem = HistoryRow | Mapping[str, Any] | tuple[SessionMessage, str | None, float]


class ConversationHandle:
    """One conversation, by name."""

    def __init__(self, name: str, resolver: Resolver) -> None:
        check_name(name)
        self.name = name
        self._resolver = resolver
        self._channels: dict[asyncio.AbstractEventLoop, Channel] = {}

    def __repr__(self) -> str:
        return f"<conversation {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ConversationHandle, (self.name, self._resolver)

    def session(self, session_id: str = "") -> "SessionHandle":
        """Return the handle of a session."""
        return SessionHandle(self, session_id)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a public async method of the hosted class; arguments and result are pickled.

        It runs at most once: when the owner dies on the way, RayActorError says that it may or
        may not have run; when the conversation has to move, MigratingError that it was cut short.
        Raises: what the method raised, RemoteCallError when that does not pickle.
        """
        data = wire.dump_call(method, args, kwargs)
        return await self.request("", wire.CALL, data)

    async def session_ids(self) -> list[str]:
        """List the sessions that hold anything."""
        return cast(list[str], await self.request("", wire.LIST_SESSIONS, _NO_ARGS))

    async def verify(self) -> list[str]:
        """List what is wrong with the file: SQLite's own checks, parents, references, index.

        Returns: a line for each; nothing for a sound conversation.
        Cost: reads everything once, and other calls wait meanwhile.
        """
        return cast(list[str], await self.request("", wire.VERIFY, _NO_ARGS))

    def changes(self) -> ChangeStream:
        """Follow every acknowledged write of every session from now on; see `ChangeStream`.

        Called with a running event loop; it begins before any call that is made after it.
        """
        return ChangeStream(self.channel(), lambda event: True)

    def channel(self) -> Channel:
        """Return the running event loop's channel to this conversation."""
        loop = asyncio.get_running_loop()
        channel = self._channels.get(loop)
        if channel is None:
            for other in list(self._channels):
                if other.is_closed():
                    self._channels.pop(other, None)
            channel = self._channels[loop] = Channel(self.name, self._resolver)
        return channel

    async def request(self, session_id: str, method: str, data: bytes, given: Any = None) -> Any:
        """Make one call whose arguments are encoded; returns its result decoded."""
        answer = await self.channel().call(session_id, method, data)
        return wire.load_result(wire.METHODS[method].result, answer, given)


class SessionHandle:
    """One session of a conversation; see `Session` for what each method means."""

    def __init__(self, conversation: ConversationHandle, session_id: str) -> None:
        if not isinstance(session_id, str):
            raise ValueError(f"session_id: {type(session_id).__name__} is no string")
        try:
            session_id.encode()
        except UnicodeEncodeError:
            raise ValueError("session_id: holds a lone surrogate") from None
        self.session_id = session_id
        self._conversation = conversation

    def __repr__(self) -> str:
        return f"<session {self.session_id!r} of {self._conversation!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return SessionHandle, (self._conversation, self.session_id)

    async def _ask(self, method: str, names: str, *args: Any, **kwargs: Any) -> Any:
        data = wire.dump_args(args, kwargs, names.split())
        given = args[0] if args else None
        return await self._conversation.request(self.session_id, method, data, given)

    # -------------------------------------------------------------------------------- writes

    async def append_message(
        self, message: SessionMessage, *, parent_id: Parent = LEAF, source: str = "server"
    ) -> AppendResult:
        """Append one message; a known id writes nothing and gives the stored message.

        Args:
            parent_id: omitted, the active leaf; None, a new root; an id of this session, a
                branch; anything else, a new root.
            source: "client" strips reserved metadata keys and holds to the limits set for
                clients.

        Raises: ValueError naming an ill-formed field; TypeError for what JSON cannot hold;
            QuotaExceededError. Nothing is written then.
        """
        validate_message(message)
        options = _options(parent_id, source)
        return cast(AppendResult, await self._ask("append_message", "message", message, **options))

    async def append_messages(
        self,
        messages: Iterable[SessionMessage],
        *,
        parent_id: Parent = LEAF,
        source: str = "server",
    ) -> list[AppendResult]:
        """Append messages in one transaction and one round trip, each under the one before."""
        items = _listed(messages, "messages")
        for message in items:
            validate_message(message)
        options = _options(parent_id, source)
        found = await self._ask("append_messages", "messages", items, **options)
        return cast(list[AppendResult], found)

    async def update_message(
        self, message: SessionMessage, *, source: str = "server"
    ) -> SessionMessage | None:
        """Replace a stored message; None when the id is not in this session."""
        validate_message(message)
        found = await self._ask("update_message", "message", message, **_options(LEAF, source))
        return cast(SessionMessage | None, found)

    async def upsert_message(
        self, message: SessionMessage, *, parent_id: Parent = LEAF, source: str = "server"
    ) -> AppendResult:
        """Append a message, or replace the one stored under its id."""
        validate_message(message)
        options = _options(parent_id, source)
        return cast(AppendResult, await self._ask("upsert_message", "message", message, **options))

    async def delete_messages(self, message_ids: Iterable[str]) -> None:
        """Delete messages; their children move to the nearest surviving ancestor."""
        await self._ask("delete_messages", "message_ids", _listed(message_ids, "message_ids"))

    async def clear_messages(self) -> None:
        """Delete this session's messages, overlays, attachments and index rows."""
        await self._ask("clear_messages", "")

    async def import_message(
        self, message: SessionMessage, *, parent_id: str | None, created_at: float
    ) -> None:
        """Write one historical message verbatim; a known id writes nothing.

        Args: `created_at` is in ms since the epoch.
        """
        await self.import_messages([(message, parent_id, created_at)])

    async def import_messages(self, items: Iterable[ImportItem]) -> int:
        """Import messages in one transaction, all or nothing; returns how many were new.

        Args: `items` are HistoryRows, objects with `message`, `parent_id` and `created_at`, or
            tuples of the three.
        """
        rows = [_imported(item) for item in _listed(items, "items")]
        return cast(int, await self._ask("import_messages", "items", rows))

    async def import_compactions(self, overlays: Iterable[Compaction]) -> int:
        """Store overlays with their ids and times; known ids are left alone."""
        rows = [
            [o.id, o.summary, o.from_message_id, o.to_message_id, o.created_at]
            for o in _listed(overlays, "overlays")
        ]
        return cast(int, await self._ask("import_compactions", "overlays", rows))

    async def import_config(self, entries: Mapping[str, str]) -> int:
        """Store entries of the session's configuration; returns how many were new."""
        return cast(int, await self._ask("import_config", "entries", dict(entries)))

    # --------------------------------------------------------------------------------- reads

    async def get_config(self) -> dict[str, str]:
        """Read the session's configuration."""
        return cast("dict[str, str]", await self._ask("get_config", ""))

    async def history(
        self, *, leaf_id: str | None = None, newest_first: bool = False
    ) -> AsyncIterator[SessionMessage]:
        """Stream one path, overlays applied: root to leaf, or leaf to root.

        A consumer that stops costs nothing more; newest first, one that breaks at the first
        message has read that one alone.
        """
        async with aclosing(self._history(leaf_id, newest_first)) as found:
            async for window in found:
                for message in decode(window):
                    if is_message(message):
                        yield message

    async def history_batches(
        self,
        *,
        batch_size: int = WINDOW_ROWS_MAX,
        max_batch_bytes: int = WINDOW_BYTES_MAX,
        leaf_id: str | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[list[SessionMessage]]:
        """Stream one path in batches, never empty, bounded by count and compact JSON bytes."""
        size, limit = max(1, int(batch_size)), max(1, int(max_batch_bytes))
        batch: list[SessionMessage] = []
        batch_bytes = 0
        async with aclosing(self._sized(leaf_id, newest_first)) as found:
            async for message, text_bytes in found:
                if batch and batch_bytes + text_bytes > limit:
                    yield batch
                    batch, batch_bytes = [], 0
                batch.append(message)
                batch_bytes += text_bytes
                if len(batch) >= size or batch_bytes >= limit:
                    yield batch
                    batch, batch_bytes = [], 0
        if batch:
            yield batch

    async def _sized(
        self, leaf_id: str | None, newest_first: bool
    ) -> AsyncGenerator[tuple[SessionMessage, int], None]:
        async with aclosing(self._history(leaf_id, newest_first)) as found:
            async for window in found:
                for index, message in decode_each(window):
                    if is_message(message):
                        yield message, window.sizes[index]

    async def get_history(
        self, *, leaf_id: str | None = None, newest_first: bool = False
    ) -> list[SessionMessage]:
        """Read a whole path. Prefer `history()`: this holds every message at once."""
        found = self.history(leaf_id=leaf_id, newest_first=newest_first)
        return [message async for message in found]

    async def get_recent_history(
        self, max_content_bytes: float, *, leaf_id: str | None = None
    ) -> RecentHistory:
        """Read the longest recent part of a path that fits a byte budget."""
        budget = max_content_bytes
        if isinstance(budget, float) and math.isinf(budget):
            budget = 2**62 if budget > 0 else 0
        params = {"max_content_bytes": budget, "leaf_id": leaf_id}
        messages: list[SessionMessage] = []
        truncated, total = False, 0
        channel = self._conversation.channel()
        async for window in windows(channel, self.session_id, "recent", params, WHOLE):
            if window.facts is not None:
                truncated, total = window.facts
            messages += (message for message in decode(window) if is_message(message))
        return RecentHistory(messages, truncated, total)

    async def history_rows(self, *, after_seq: int = 0) -> AsyncIterator[HistoryRow]:
        """Stream every stored row of the session, all branches, in the order of writing."""
        channel = self._conversation.channel()
        params = {"after_seq": after_seq}
        async with aclosing(windows(channel, self.session_id, "rows", params)) as found:
            async for window in found:
                for index, message in decode_each(window):
                    if is_message(message):
                        yield HistoryRow(message, *window.facts[index])

    def _history(
        self, leaf_id: str | None, newest_first: bool
    ) -> AsyncGenerator[LoadedWindow, None]:
        params = {"leaf_id": leaf_id, "newest_first": bool(newest_first)}
        plan = NEWEST_FIRST if newest_first else FROM_THE_ROOT
        return windows(self._conversation.channel(), self.session_id, "history", params, plan)

    async def get_message(self, message_id: str) -> SessionMessage | None:
        """Read one message; None when it is absent."""
        found = await self._ask("get_message", "message_id", message_id)
        return cast(SessionMessage | None, found)

    async def get_latest_leaf(self) -> SessionMessage | None:
        """Read the active leaf: the newest row, whatever its place in the tree."""
        return cast(SessionMessage | None, await self._ask("get_latest_leaf", ""))

    async def get_branches(self, message_id: str) -> list[SessionMessage]:
        """Read a message's children in the order they were written."""
        found = await self._ask("get_branches", "message_id", message_id)
        return cast(list[SessionMessage], found)

    async def get_history_row_stats(self, leaf_id: str | None = None) -> list[RowStat]:
        """List a path's rows with stored bytes and token estimates, without content."""
        found = await self._ask("get_history_row_stats", "leaf_id", leaf_id)
        return cast(list[RowStat], found)

    async def search(self, query: str, *, limit: int | None = 20) -> list[SearchResult]:
        """Find a phrase in the text parts of this session's messages, all branches."""
        return cast(list[SearchResult], await self._ask("search", "query", query, limit=limit))

    # ---------------------------------------------------------------------------- compaction

    async def compact(self, leaf_id: str | None = None) -> CompactResult | None:
        """Summarise a path with the function the hosted class registered, and store it.

        Raises: RuntimeError without a registered function.
        """
        return cast(CompactResult | None, await self._ask("compact", "leaf_id", leaf_id))

    async def add_compaction(
        self, summary: str, from_message_id: str, to_message_id: str
    ) -> Compaction:
        """Store an overlay directly: reads of a path that holds the range show the summary."""
        names = "summary from_message_id to_message_id"
        asked = self._ask("add_compaction", names, summary, from_message_id, to_message_id)
        return cast(Compaction, await asked)

    async def get_compactions(self) -> list[Compaction]:
        """List the session's overlays in the order of their records."""
        return cast(list[Compaction], await self._ask("get_compactions", ""))

    # --------------------------------------------------------------------------- change feed

    def changes(self) -> ChangeStream:
        """Follow every acknowledged write of this session from now on; see `ChangeStream`."""
        own = self.session_id
        return ChangeStream(
            self._conversation.channel(),
            lambda event: event.session_id == own,
        )


def _options(parent_id: Parent, source: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if parent_id is not LEAF:
        options["parent_id"] = parent_id
    if source != "server":
        options["source"] = source
    return options


def _listed(items: Any, what: str) -> list[Any]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise TypeError(f"{what}: {type(items).__name__} is no sequence")
    return list(items)


def _imported(item: Any) -> list[Any]:
    """Bring one item to import into the form that crosses.

    Raises: ValueError and TypeError as in process.
    """
    if isinstance(item, HistoryRow):
        fields: Sequence[Any] = (item.message, item.parent_id, item.created_at)
    elif isinstance(item, Mapping):
        missing = {"message", "parent_id", "created_at"}.difference(item)
        if missing:
            raise ValueError(f"{min(missing)}: missing in an item to import")
        fields = (item["message"], item["parent_id"], item["created_at"])
    elif isinstance(item, tuple | list) and len(item) == 3:
        fields = item
    else:
        raise ValueError("items: each is a HistoryRow or (message, parent_id, created_at)")
    message, parent_id, created_at = fields
    validate_message(message)
    dumps(message)
    for name, value in (("parent_id", parent_id), ("created_at", created_at)):
        try:
            dumps(value, name)
        except TypeError as error:
            raise ValueError(str(error)) from None
    return [message, parent_id, created_at]
