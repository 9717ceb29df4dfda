"""A checkpointer of LangGraph over conversations: extra `langgraph`.

    async with connect() as conversations:
        graph = builder.compile(checkpointer=ConversationSaver(conversations))
        await graph.ainvoke(inputs, {"configurable": {"thread_id": "alice"}})

A thread is the conversation of that name. The graph's `messages` are the conversation's own: they
are read, searched and exported like any other, and a turn costs what it adds, not the whole state
again. `langgraph_rows` says what lies where.

A checkpoint is acknowledged once it is durable, after everything it speaks of; every write is
idempotent, so a retry adds nothing. The latest checkpoint is the one written last (two machines
whose clocks differ agree on it), and `list` goes back from there, one namespace after the other.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, cast

from sessions_actor.errors import ConversationNotFoundError
from sessions_actor.handle import ConversationHandle, SessionHandle
from sessions_actor.messages import SessionMessage
from sessions_actor.overlays import COMPACTION_PREFIX
from sessions_actor.records import Message

from ..client import Client
from ..sync import SyncClient
from .langchain_messages import mark_of, message_fields, message_of, row_id, with_id
from .langgraph_rows import (
    BATCH_ROWS,
    CHAT,
    CHAT_CHANNEL,
    CHECKPOINTS,
    KEY,
    MESSAGES,
    VALUES,
    WRITES,
    ImportRow,
    Packer,
    batches,
    is_ours,
    key,
    listed,
    metadata_of,
    milliseconds,
    needed_by_latest,
    unpack,
    unspoken_values,
    write_order,
)
from .requirement import require

require("langgraph.checkpoint", package="langgraph-checkpoint", extra="langgraph")

from langchain_core.messages import BaseMessage  # noqa: E402
from langgraph.checkpoint.base import (  # noqa: E402
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # noqa: E402

from .langgraph_blocking import BlockingForms  # noqa: E402

# Rows of messages known to be stored: a turn then sends only what is new.
KNOWN_ROWS_MAX: Final = 100_000
ITEMS_AT_ONCE: Final = 50

Config = Any
"""LangChain's `RunnableConfig`."""
Place = tuple[str, str, str | None]
"""Thread, namespace and checkpoint id of a configuration."""


class ConversationSaver(BlockingForms):
    """LangGraph's checkpointer over a deployment's conversations.

    Both kinds of methods work, from any thread and any event loop; the blocking ones wait in the
    thread that calls them.
    """

    def __init__(
        self, conversations: Client | SyncClient, *, prefix: str = "", serde: Any = None
    ) -> None:
        """Wrap a client; no I/O.

        Args:
            conversations: what `connect()` or `connect_sync()` gave, entered.
            prefix: put before a thread's id to name its conversation; `list(None)` sees only
                conversations whose names begin so.
            serde: LangGraph's serializer; its plain one if omitted.
        """
        super().__init__(serde=serde)
        if isinstance(conversations, SyncClient):
            conversations = conversations._client
        self._client: Client = conversations
        self._prefix = prefix
        self._known: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    # -------------------------------------------------------------------------------- writing

    async def aput(
        self,
        config: Config,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Config:
        """Store a checkpoint and the channels that changed; returns its configuration."""
        thread, ns, parent_id = _place(config)
        conversation = self._conversation(thread)
        at = milliseconds(checkpoint.get("ts"))
        values: dict[str, Any] = checkpoint["channel_values"]
        versions: dict[str, Any] = checkpoint["channel_versions"]
        stored = [channel for channel in values if channel in versions]
        changed = {one: values[one] for one in stored if one in new_versions}
        await self._put_values(thread, ns, at, changed, versions)
        head = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        packer = self._packer()
        row = packer.row(
            checkpoint["id"],
            "checkpoint",
            parent=parent_id,
            checkpoint=packer.pack(head),
            metadata=packer.pack(get_checkpoint_metadata(config, metadata)),
            channels=stored,
            # A value without a version is found by none: it stays here.
            values={one: packer.pack(values[one]) for one in values if one not in versions},
        )
        await _checkpoints(conversation, ns).upsert_message(cast(SessionMessage, row))
        return _config(thread, ns, checkpoint["id"])

    async def _put_values(
        self,
        thread: str,
        ns: str,
        at: float,
        changed: Mapping[str, Any],
        versions: Mapping[str, Any],
    ) -> None:
        """Store what channels hold now. Messages go first: a value names the last of them."""
        rows: list[tuple[Message, str | None]] = []
        for channel, value in changed.items():
            packer = self._packer()
            if self._is_plain and _is_messages(value):
                session_id = CHAT if (ns, channel) == ("", CHAT_CHANNEL) else MESSAGES
                last = await self._put_messages(thread, session_id, value, at)
                held: Message = {"messages": last, "session": session_id}
            else:
                held = {"value": packer.pack(value)}
            rows.append((packer.row(key(ns, channel, versions[channel]), "value", **held), None))
        if rows:
            await _import(self._conversation(thread).session(VALUES), listed(rows, at))

    async def _put_messages(
        self, thread: str, session_id: str, messages: Sequence[BaseMessage], at: float
    ) -> str:
        """Store a list of messages as a path; returns the id of its last row."""
        ids: list[str] = []
        for message in messages:
            ids.append(row_id(ids[-1] if ids else None, mark_of(message, self.serde)))

        def rows_from(start: int) -> list[tuple[Message, str | None]]:
            found = []
            for number in range(start, len(ids)):
                fields = message_fields(messages[number], self.serde)
                row = cast(Message, with_id(fields, ids[number]))
                found.append((row, ids[number - 1] if number else None))
            return found

        session = self._conversation(thread).session(session_id)
        known = 0
        while known < len(ids) and self._is_known(thread, session_id, ids[known]):
            known += 1
        if known:
            # The thread may have been deleted by another process since: the row before the new
            # ones is asked for by the same call, and without it all of them are sent.
            found, _ = await asyncio.gather(
                session.get_message(ids[known - 1]), _import(session, listed(rows_from(known), at))
            )
            known = known if found is not None else 0
        if not known:
            await _import(session, listed(rows_from(0), at))
        for one in ids[known:]:
            self._know(thread, session_id, one)
        return ids[-1]

    def _is_known(self, thread: str, session_id: str, message_id: str) -> bool:
        place = (thread, session_id, message_id)
        if place not in self._known:
            return False
        self._known.move_to_end(place)
        return True

    def _know(self, thread: str, session_id: str, message_id: str) -> None:
        self._known[thread, session_id, message_id] = None
        while len(self._known) > KNOWN_ROWS_MAX:
            self._known.popitem(last=False)

    async def aput_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's writes; one that is there already stays, a special one is replaced."""
        thread, ns, checkpoint_id = _place(config)
        session = self._conversation(thread).session(WRITES)
        root: Message = {"id": key(ns, checkpoint_id), "role": "checkpoint", "parts": []}
        ordinary: list[tuple[Message, str | None]] = [(root, None)]
        special: list[Message] = []
        for number, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, number)
            packer = self._packer()
            row = packer.row(
                key(ns, checkpoint_id, task_id, index),
                "write",
                task=task_id,
                index=index,
                path=task_path,
                channel=channel,
                value=packer.pack(value),
            )
            if index < 0:
                special.append(row)
            else:
                ordinary.append((row, root["id"]))
        await _import(session, listed(ordinary, 0))
        for row in special:
            await session.upsert_message(cast(SessionMessage, row), parent_id=root["id"])

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread: the whole conversation, whatever else it holds."""
        await self._client.delete(self._prefix + str(thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy every checkpoint, write and message of a thread to another; known rows stay."""
        source = self._conversation(str(source_thread_id))
        target = self._conversation(str(target_thread_id))
        for session_id in await self._session_ids(source):
            rows: list[Any] = []
            async for row in source.session(session_id).history_rows():
                rows.append(row)
                if len(rows) >= BATCH_ROWS:
                    await _import(target.session(session_id), rows)
                    rows = []
            await _import(target.session(session_id), rows)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the latest of each namespace, or the threads.

        Args: `strategy` is "keep_latest" or "delete". What the latest is rebuilt from (snapshots
            of delta channels, and the writes since) is kept as well; messages always are.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy: {strategy!r} is neither 'keep_latest' nor 'delete'")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                await self.adelete_thread(thread)
                continue
            for ns in await self._namespaces(thread):
                rows = [row async for row in self._rows(thread, ns, None, None)]
                await self._drop(thread, ns, rows, kept=needed_by_latest(rows, self.serde))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs made, and their writes.

        Cost: reads every checkpoint of every thread, which wakes every conversation.
        """
        wanted = set(run_ids)
        async for thread, ns in self._places(None):
            rows = [row async for row in self._rows(thread, ns, None, None)]
            kept = {
                row["id"]
                for row in rows
                if metadata_of(row, self.serde).get("run_id") not in wanted
            }
            await self._drop(thread, ns, rows, kept=kept)

    async def _drop(self, thread: str, ns: str, rows: list[Message], *, kept: set[str]) -> None:
        """Delete checkpoints first: what they alone spoke of is then out of anyone's sight."""
        dropped = [row["id"] for row in rows if row["id"] not in kept]
        if not dropped:
            return
        conversation = self._conversation(thread)
        await _checkpoints(conversation, ns).delete_messages(dropped)
        writes = conversation.session(WRITES)
        for checkpoint_id in dropped:
            root = key(ns, checkpoint_id)
            children = [row["id"] for row in await writes.get_branches(root)]
            await writes.delete_messages([*children, root])
        await conversation.session(VALUES).delete_messages(
            unspoken_values(ns, rows, kept, self.serde)
        )

    # -------------------------------------------------------------------------------- reading

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """Read the checkpoint that a configuration names, else the thread's latest."""
        thread, ns, checkpoint_id = _place(config)
        session = _checkpoints(self._conversation(thread), ns)
        if checkpoint_id is None:
            row = await session.get_latest_leaf()
        else:
            row = await session.get_message(checkpoint_id)
        return None if row is None else await self._tuple(thread, ns, cast(Message, row))

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the latest first, namespace by namespace.

        Without a configuration those of every thread, which wakes every conversation.
        """
        left = limit
        before_id = get_checkpoint_id(before) if before else None
        async for thread, ns in self._places(config):
            wanted = get_checkpoint_id(config) if config else None
            async for row in self._rows(thread, ns, wanted, before_id):
                if left is not None and left <= 0:
                    return
                if filter and not self._matches(row, filter):
                    continue
                left = None if left is None else left - 1
                yield await self._tuple(thread, ns, row)

    async def _places(self, config: Config | None) -> AsyncIterator[tuple[str, str]]:
        """Yield the threads and namespaces that a configuration asks for."""
        if config is None:
            async for name in self._client.list(self._prefix):
                thread = name[len(self._prefix) :]
                for ns in await self._namespaces(thread):
                    yield thread, ns
            return
        thread, ns = (
            str(config["configurable"]["thread_id"]),
            config["configurable"].get("checkpoint_ns"),
        )
        for one in await self._namespaces(thread):
            if ns is None or one == ns:
                yield thread, one

    async def _namespaces(self, thread: str) -> list[str]:
        found = await self._session_ids(self._conversation(thread))
        return sorted(one.removeprefix(CHECKPOINTS) for one in found if one.startswith(CHECKPOINTS))

    async def _session_ids(self, conversation: ConversationHandle) -> list[str]:
        """List a thread's sessions; a thread that is not there is not made by asking."""
        try:
            await self._client.info(conversation.name)
        except ConversationNotFoundError:
            return []
        return [one for one in await conversation.session_ids() if is_ours(one)]

    async def _rows(
        self, thread: str, ns: str, wanted: str | None, before_id: str | None
    ) -> AsyncIterator[Message]:
        session = _checkpoints(self._conversation(thread), ns)
        if wanted is not None:
            row = await session.get_message(wanted)
            if row is not None and (before_id is None or wanted < before_id):
                yield cast(Message, row)
            return
        # What was written before a checkpoint lies above it; one that is not here sorts by its id.
        start = None
        if before_id is not None and await session.get_message(before_id) is not None:
            start = before_id
        async for message in session.history(leaf_id=start, newest_first=True):
            passed = start is not None or before_id is None or message["id"] < before_id
            if passed and message["id"] != start:
                yield cast(Message, message)

    def _matches(self, row: Message, filter: Mapping[str, Any]) -> bool:
        metadata = metadata_of(row, self.serde)
        return all(metadata.get(name) == value for name, value in filter.items())

    async def _tuple(self, thread: str, ns: str, row: Message) -> CheckpointTuple:
        """Gather what a checkpoint's row speaks of."""
        held = row[KEY]
        checkpoint = unpack(row, held["checkpoint"], self.serde)
        versions = checkpoint["channel_versions"]
        conversation = self._conversation(thread)
        writes, *values = await asyncio.gather(
            conversation.session(WRITES).get_branches(key(ns, row["id"])),
            *(
                self._value(conversation, key(ns, channel, versions[channel]))
                for channel in held["channels"]
            ),
        )
        found = {name: unpack(row, packed, self.serde) for name, packed in held["values"].items()}
        found |= dict(zip(held["channels"], values, strict=True))
        parent_id = held["parent"]
        pending = [
            (one[KEY]["task"], one[KEY]["channel"], unpack(one, one[KEY]["value"], self.serde))
            for one in sorted(cast("list[Message]", writes), key=write_order)
        ]
        return CheckpointTuple(
            config=_config(thread, ns, row["id"]),
            checkpoint={**checkpoint, "channel_values": found},
            metadata=unpack(row, held["metadata"], self.serde),
            parent_config=None if parent_id is None else _config(thread, ns, parent_id),
            pending_writes=pending,
        )

    async def _value(self, conversation: ConversationHandle, value_id: str) -> Any:
        row = await conversation.session(VALUES).get_message(value_id)
        if row is None:
            raise RuntimeError(
                f"thread {conversation.name!r} has lost channel {value_id}: it was deleted, or"
                " pruned, while a run wrote to it"
            )
        held: Message = cast(Message, row)[KEY]
        if "value" in held:
            return unpack(cast(Message, row), held["value"], self.serde)
        session_id, last = held["session"], held["messages"]
        thread = conversation.name.removeprefix(self._prefix)
        messages = await _path(conversation.session(session_id), last)
        for message in messages:
            self._know(thread, session_id, message["id"])
        return [message_of(message, self.serde) for message in messages]

    # ----------------------------------------------------------------------------------- small

    def get_next_version(self, current: Any, channel: None = None) -> str:
        """Return a version after the current one; two forks never make the same."""
        number = int(str(current).partition(".")[0]) if current is not None else 0
        return f"{number + 1:016}.{random.getrandbits(48):012x}"

    @property
    def _is_plain(self) -> bool:
        """Whether content may stand in rows for anyone to read."""
        return type(self.serde) is JsonPlusSerializer

    def _packer(self) -> Packer:
        return Packer(self.serde, plain=self._is_plain)

    def _conversation(self, thread: str) -> ConversationHandle:
        return self._client.get(self._prefix + thread)


def _place(config: Config) -> Place:
    held = config["configurable"]
    return str(held["thread_id"]), held.get("checkpoint_ns") or "", get_checkpoint_id(config)


def _config(thread: str, ns: str, checkpoint_id: str) -> Config:
    return {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def _checkpoints(conversation: ConversationHandle, ns: str) -> SessionHandle:
    return conversation.session(CHECKPOINTS + ns)


def _is_messages(value: Any) -> bool:
    return (
        type(value) is list
        and bool(value)
        and all(isinstance(message, BaseMessage) for message in value)
    )


async def _import(session: SessionHandle, rows: Sequence[ImportRow]) -> None:
    """Import rows; nothing speaks of them yet, so it need not be one transaction."""
    for batch in batches(rows):
        await session.import_messages(batch)


async def _path(session: SessionHandle, leaf_id: str) -> list[SessionMessage]:
    """Read a list of messages as it was written: a state is never replaced by its summary."""
    found = await session.get_history(leaf_id=leaf_id)
    if not any(message["id"].startswith(COMPACTION_PREFIX) for message in found):
        return found
    ids = [stat.id for stat in await session.get_history_row_stats(leaf_id)]
    rows: list[SessionMessage] = []
    for at in range(0, len(ids), ITEMS_AT_ONCE):
        some = await asyncio.gather(*map(session.get_message, ids[at : at + ITEMS_AT_ONCE]))
        rows += [row for row in some if row is not None]
    return rows
