"""The Sessions capability: durable conversation history for a Durable Object.

Source: specification, "Install the capability", "Observe changes", "Multiple sessions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..lifecycle import LifecycleCapability
from ..limits import ClientLimits
from . import schema
from .engine import Engine
from .feed import ChangeFeed, Listener
from .legacy import lift
from .session import Session
from .sql import is_text

SCHEMA_VERSION_KEY = "cf_agents:sessions_schema_version"
SCHEMA_VERSION = 1


class Sessions(LifecycleCapability):
    """Tree-structured messages, branches, overlays, attachments and search in one file."""

    def __init__(
        self,
        *,
        reserved_metadata_keys: Collection[str] = (),
        client_message_bytes_max: int | None = None,
        client_parts_max: int | None = None,
    ) -> None:
        """Make the capability.

        Args:
            reserved_metadata_keys: metadata keys stripped from messages of `source="client"`.
            client_message_bytes_max: most bytes of JSON, payloads inline, of a message that
                `source="client"` may write; None for no limit.
            client_parts_max: most parts of such a message; None for no limit.

        Raises: ValueError for a limit below 1.
        """
        super().__init__("sessions")
        self._reserved = tuple(reserved_metadata_keys)
        self._client_limits = ClientLimits(client_message_bytes_max, client_parts_max)
        self._sessions: dict[str, Session] = {}
        self._engine: Engine | None = None
        self.feed = ChangeFeed(self.emit)

    @property
    def engine(self) -> Engine:
        """The writes and reads below the handles; made at startup."""
        if self._engine is None:
            raise RuntimeError("Sessions has not started: await lifecycle.ready() first")
        return self._engine

    @property
    def client_limits(self) -> ClientLimits:
        """What `source="client"` may write."""
        return self._client_limits

    def limit_clients(self, limits: ClientLimits) -> None:
        """Hold clients to these bounds too; those the capability was made with stay."""
        self._client_limits = self._client_limits.tightened(limits)

    def session(self, session_id: str = "") -> Session:
        """Get the handle of a session; the same one for the same id."""
        if not is_text(session_id):
            raise ValueError("session_id: not a string that UTF-8 can hold")
        found = self._sessions.get(session_id)
        if found is None:
            found = self._sessions[session_id] = Session(session_id, self)
        return found

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Follow every durable write of every session; returns how to stop."""
        return self.feed.subscribe(listener)

    async def ready(self) -> None:
        """Wait until the object has started."""
        await self.lifecycle.ready()

    def emit(self, type: str, payload: dict[str, Any]) -> None:
        """Report through the object's lifecycle events."""
        self.lifecycle.events.emit(type, payload)

    async def on_start(self) -> None:
        """Create the tables, lift the tables of older versions, adopt a foreign index."""
        storage = self.lifecycle.storage
        if self._engine is None:
            storage.perform(lambda: schema.ensure_tables(storage.connection))
            self._engine = Engine(storage, reserved_metadata_keys=self._reserved)
        if (storage.kv.get(SCHEMA_VERSION_KEY) or 0) < SCHEMA_VERSION:
            complete = lift(self._engine, self.emit)
            if complete:
                storage.perform(lambda: storage.kv.put(SCHEMA_VERSION_KEY, SCHEMA_VERSION))
        if self._engine.index.foreign:
            await self._engine.index.ensure()
        await storage.durable()

    async def on_dispose(self) -> None:
        """Let go of temporary files."""
        if self._engine is not None:
            self._engine.close()
