"""What a row of the directory says: a conversation's state, its owner, its file. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sessions_actor.names import file_stem

CONVERSATIONS_FOLDER: Final = "conversations"

# What a directory's file notes of its replica: the line that it is in, and what that line lacks
# before the directory is of use (`replication.home`).
LINE_KEY: Final = "directory_line"
PENDING_KEY: Final = "directory_pending"
# It may lack what is in the file: it has to be copied first.
COPY_PENDING: Final = "copy"
# In place of a generation: the file may hold what no replica does, since it was written to while
# replication was off. An older replica of it must not be taken for the conversation.
LINE_STALE: Final = -1


class State(StrEnum):
    """What the directory holds true of a conversation."""

    HIBERNATED = "hibernated"
    ACTIVE = "active"
    MIGRATING = "migrating"
    DELETING = "deleting"


# From each state, the states that one step leads to. ACTIVE to ACTIVE is a new owner after the
# old one was lost; MIGRATING to ACTIVE ends a migration, switched or given up; MIGRATING to
# HIBERNATED finds the source gone.
TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.HIBERNATED: frozenset({State.ACTIVE, State.DELETING}),
    State.ACTIVE: frozenset({State.ACTIVE, State.HIBERNATED, State.MIGRATING, State.DELETING}),
    State.MIGRATING: frozenset({State.ACTIVE, State.HIBERNATED}),
    State.DELETING: frozenset(),
}
assert set(TRANSITIONS) == set(State)


def sources(target: State) -> tuple[State, ...]:
    """Return the states from which one step leads to this one."""
    return tuple(state for state in State if target in TRANSITIONS[state])


class Owner(NamedTuple):
    """An actor that a conversation is given to, and the disk its node mounts."""

    node_id: str
    actor: str
    disk_id: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One row. `node_id` and `actor` are None while it hibernates; times are in ms.

    `target` is the owner-to-be of a migration that has not switched, with its epoch and generation.
    `line` is the generation whose replica was complete last, at least up to the transaction
    `position`; 0: none was.
    `has_file` says that somebody was served from the file: from then on a missing one is a fault.
    """

    name: str
    state: State
    epoch: int
    generation: int
    disk_id: str
    node_id: str | None
    actor: str | None
    quota_bytes: int | None
    file_bytes: int
    created_at: int
    last_active_at: int
    line: int = 0
    position: int = 0
    has_file: bool = False
    target: dict[str, Any] | None = None

    @property
    def file(self) -> str:
        """The file's path below the storage root."""
        return file_of(self.name, self.generation)


class NodeRow(NamedTuple):
    """What is remembered of a node: its disk, its machine, its lease's term."""

    disk_id: str
    draining: bool
    machine_id: str
    term: int


class Waste(NamedTuple):
    """A file that nobody needs any more."""

    disk_id: str
    file: str


def file_of(name: str, generation: int) -> str:
    """Return the path, below the storage root, of a conversation's file of some generation."""
    return f"{CONVERSATIONS_FOLDER}/{file_stem(name)}.{generation}.sqlite"
