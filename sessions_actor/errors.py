"""The errors of this package, split by cause.

`StorageError`: the file or its disk. `RoutingError`: the call reached the wrong place or came at
the wrong moment, and asking again is right. `OutputGateBrokenError`: a write could not be made
durable, so nothing after it may be acknowledged.

Every error passes its arguments on to `Exception`, so that it pickles and crosses Ray, and its
text says what to do. What a caller got wrong is a `ValueError`, `TypeError` or `RuntimeError`.
"""

from typing import ClassVar


class SessionsActorError(Exception):
    """The root of every error defined here."""

    retryable: ClassVar[bool] = False


class StorageError(SessionsActorError):
    """The conversation's file cannot be opened, read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path or 'storage'}: {self.reason}"


class QuotaExceededError(StorageError):
    """A write would have grown the file past its quota; nothing of it was written."""

    def __init__(self, used_bytes: int, limit_bytes: int, path: str = "") -> None:
        super().__init__(path, "quota exceeded")
        self.args = (used_bytes, limit_bytes, path)
        self.used_bytes, self.limit_bytes = used_bytes, limit_bytes

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return (
            f"{where}the write does not fit: {self.used_bytes} of {self.limit_bytes} bytes are in"
            " use; delete messages or raise the quota"
        )


class NothingToRestoreError(StorageError):
    """There is no replica, or it holds nothing of the moment that was asked for."""


class StorageCorruptError(StorageError):
    """The file is damaged, or is no conversation at all."""

    def __init__(self, path: str, check: str) -> None:
        super().__init__(path, check)
        self.check = check

    def __str__(self) -> str:
        return (
            f"{self.path}: not a sound conversation file ({self.check});"
            " restore it from a backup or move it away"
        )


class RoutingError(SessionsActorError):
    """The call did not reach the conversation's owner; it may be made again."""

    retryable: ClassVar[bool] = True


class StaleEpochError(RoutingError):
    """A later activation owns the conversation."""

    def __init__(self, presented: int, current: int) -> None:
        super().__init__(presented, current)
        self.presented, self.current = presented, current

    def __str__(self) -> str:
        return (
            f"epoch {self.presented} is stale ({self.current} holds it):"
            " resolve the conversation again"
        )


class MigratingError(RoutingError):
    """The conversation is sealed while it moves."""

    def __init__(self, name: str, retry_after_s: float) -> None:
        super().__init__(name, retry_after_s)
        self.name, self.retry_after_s = name, retry_after_s

    def __str__(self) -> str:
        return f"conversation {self.name!r} is migrating: retry in {self.retry_after_s:g} s"


class LeaseMissingError(RoutingError):
    """The node that serves the conversation holds no lease now: it may acknowledge nothing."""

    def __init__(self, name: str, retry_after_s: float) -> None:
        super().__init__(name, retry_after_s)
        self.name, self.retry_after_s = name, retry_after_s

    def __str__(self) -> str:
        return (
            f"the node that serves conversation {self.name!r} has no lease: retry in"
            f" {self.retry_after_s:g} s; `sessions-actor doctor` says which node, and why"
        )


class OverloadedError(RoutingError):
    """More waits than the conversation accepts; `unit` says what is counted: calls or bytes."""

    def __init__(self, pending: int, limit: int, unit: str = "calls") -> None:
        super().__init__(pending, limit, unit)
        self.pending, self.limit, self.unit = pending, limit, unit

    def __str__(self) -> str:
        return (
            f"{self.pending:,} {self.unit} are pending (limit {self.limit:,}): await some of the"
            f" calls under way, then retry; max_pending_{self.unit} is the limit"
        )


class NoCapacityError(RoutingError):
    """No node can take another active conversation."""

    def __init__(self, node_count: int) -> None:
        super().__init__(node_count)
        self.node_count = node_count

    def __str__(self) -> str:
        if not self.node_count:
            return (
                "no live node can serve it: its disk is mounted nowhere, or no other node takes"
                " conversations; bring a node back"
            )
        return (
            f"none of {self.node_count} nodes has room for another conversation:"
            " retry later, add a node or raise max_active"
        )


class ReplicaUnavailableError(RoutingError):
    """A write is on its own disk, but its replica could not be reached in time.

    It may be repeated, which is safe because writes are idempotent by id; it counts as durable
    once that succeeds.
    """

    def __init__(self, reason: str, waited_s: float) -> None:
        super().__init__(reason, waited_s)
        self.reason, self.waited_s = reason, waited_s

    def __str__(self) -> str:
        return (
            f"the replica has not confirmed within {self.waited_s:g} s ({self.reason}): nothing is"
            " lost, repeat the call once the replica is reachable, or raise replica_timeout_s"
        )


class OutputGateBrokenError(SessionsActorError):
    """A commit failed: whether the write is durable is unknown, and who held the file lets go."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: the output gate is broken ({self.reason}); the file is opened again by"
            " the next call: repeat this one, which is safe because writes are idempotent by id"
        )


class ConversationNotFoundError(SessionsActorError):
    """The directory holds no conversation of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no conversation is named {self.name!r}: check the name, or append to create it"


class MigrationFailedError(SessionsActorError):
    """A migration was given up; the source goes on serving."""

    def __init__(self, name: str, phase: str, reason: str) -> None:
        super().__init__(name, phase, reason)
        self.name, self.phase, self.reason = name, phase, reason

    def __str__(self) -> str:
        return (
            f"conversation {self.name!r} was not migrated ({self.phase}: {self.reason});"
            " it stays where it was, migrate it again once the cause is gone"
        )


class RemoteCallError(SessionsActorError):
    """The conversation's own code raised something that cannot be pickled."""

    def __init__(self, type_name: str, detail: str) -> None:
        super().__init__(type_name, detail)
        self.type_name, self.detail = type_name, detail

    def __str__(self) -> str:
        return f"the conversation raised {self.type_name}: {self.detail}"


ERRORS: tuple[type[SessionsActorError], ...] = (
    SessionsActorError,
    StorageError,
    QuotaExceededError,
    NothingToRestoreError,
    StorageCorruptError,
    RoutingError,
    StaleEpochError,
    MigratingError,
    LeaseMissingError,
    OverloadedError,
    NoCapacityError,
    ReplicaUnavailableError,
    OutputGateBrokenError,
    ConversationNotFoundError,
    MigrationFailedError,
    RemoteCallError,
)
