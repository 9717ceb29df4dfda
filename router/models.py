"""What the client's methods return: frozen, picklable records.

Times are ISO 8601 in UTC with milliseconds; sizes are bytes.
"""

from dataclasses import dataclass, field
from typing import Literal

from sessions_actor.transfer import TableDigest

ConversationStatus = Literal["active", "hibernated", "migrating"]
JobKind = Literal["drain", "rebalance"]
JobStatus = Literal["running", "done", "cancelled", "failed"]
NodeStatus = Literal["alive", "draining"]
MigrationPhase = Literal["waiting", "copying", "catching up", "verifying", "sealed", "switched"]


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """What the directory and the owner know of one conversation.

    `node_id`, `actor_id` and `pid` are None while it hibernates. `replica_lag_s` is how long its
    replica has been behind, 0 when it is not; None while it hibernates, or has no replica.
    """

    name: str
    state: ConversationStatus
    epoch: int
    node_id: str | None
    actor_id: str | None
    pid: int | None
    file_bytes: int
    quota_bytes: int
    created_at: str
    last_active_at: str
    replica_lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A live node: its disk is None until an actor has run there; `idle` actors wait for work."""

    node_id: str
    address: str
    state: NodeStatus
    disk_id: str | None
    active: int
    idle: int
    max_active: int


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """A finished migration, verified table by table.

    `epoch` is the target's, `bytes` what was copied; `seconds` counts from the call on.
    """

    name: str
    source_node_id: str
    target_node_id: str
    epoch: int
    tables: dict[str, TableDigest]
    messages: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MigrationProgress:
    """How far a migration has come.

    It is `waiting` for its turn and for an actor, then `copying`. A large conversation is served
    meanwhile: changes follow (`catching up`), both ends are compared (`verifying`), and only
    while it is `sealed` do its callers wait. `bytes` and `rows` are what has arrived; it may come
    to more than `bytes_total`, the size at the beginning, which is None until it is known.
    """

    name: str
    phase: MigrationPhase
    bytes: int
    bytes_total: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class JobInfo:
    """How far a job has come. `total` is what it has been through with, and what is in sight.

    `bytes` were copied; `announced` says that nobody asked for it: Ray announced the node's end.
    """

    id: str
    kind: JobKind
    node_id: str | None
    state: JobStatus
    total: int
    moved: int
    failed: int
    bytes: int
    started_at: str
    ended_at: str | None
    announced: bool = False
    error: str | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.state != "running"


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job did: what moved, and why what stayed did (name -> reason).

    `reports` are those of the moves that copied a file, at most 10,000 of them; `error` says why
    a job ended early.
    """

    id: str
    kind: JobKind
    node_id: str | None
    state: JobStatus
    moved: int
    bytes: int
    reports: tuple[MigrationReport, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A moment that a conversation can be restored to, and the file whose replica holds it."""

    at: str
    generation: int


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore made.

    `source` was restored as of `at` (None: as it is) to `name`; `kept_as` is where a restore in
    place kept what was there.
    """

    name: str
    source: str
    at: str | None
    generation: int
    kept_as: str | None
    node_id: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup wrote: one file for each conversation, and what it could not copy."""

    folder: str
    conversations: int
    bytes: int
    failed: dict[str, str] = field(default_factory=dict)
