"""One conversation: a Durable Object with a private SQLite file and the Sessions capability.

This package knows nothing of many conversations (see `router`) and importing it does not import
Ray; `sessions_actor.actor` does.
"""

from .compaction import create_compact_function
from .durable_object import DurableObject, ObjectState
from .errors import (
    ConversationNotFoundError,
    LeaseMissingError,
    MigratingError,
    MigrationFailedError,
    NoCapacityError,
    NothingToRestoreError,
    OutputGateBrokenError,
    OverloadedError,
    QuotaExceededError,
    RemoteCallError,
    ReplicaUnavailableError,
    RoutingError,
    SessionsActorError,
    StaleEpochError,
    StorageCorruptError,
    StorageError,
)
from .lifecycle import Lifecycle, LifecycleCapability, LifecycleEvent
from .messages import MessagePart, SessionMessage
from .open_object import open_object
from .records import (
    LEAF,
    AppendResult,
    ChangeEvent,
    Compaction,
    CompactResult,
    HistoryRow,
    RecentHistory,
    RowStat,
    SearchResult,
)
from .sessions import Session, Sessions
from .storage import Storage

__all__ = [
    "LEAF",
    "AppendResult",
    "ChangeEvent",
    "CompactResult",
    "Compaction",
    "ConversationNotFoundError",
    "DurableObject",
    "HistoryRow",
    "LeaseMissingError",
    "Lifecycle",
    "LifecycleCapability",
    "LifecycleEvent",
    "MessagePart",
    "MigratingError",
    "MigrationFailedError",
    "NoCapacityError",
    "NothingToRestoreError",
    "ObjectState",
    "OutputGateBrokenError",
    "OverloadedError",
    "QuotaExceededError",
    "RecentHistory",
    "RemoteCallError",
    "ReplicaUnavailableError",
    "RoutingError",
    "RowStat",
    "SearchResult",
    "Session",
    "SessionMessage",
    "Sessions",
    "SessionsActorError",
    "StaleEpochError",
    "Storage",
    "StorageCorruptError",
    "StorageError",
    "create_compact_function",
    "open_object",
]
