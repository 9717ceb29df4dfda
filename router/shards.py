"""One directory split over several routers. Pure.

A conversation belongs to the shard that a hash of its name says, always the same one. Each shard is
a router of its own, with an actor's name, a directory file, leases and actors of its own; shard 0
has the names that a deployment with one router has. What a node may hold is shared out among them,
so that the sums are what the settings say.

What it does not do: split again. The number is a deployment's for good, see `reshard`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

SHARDS_MAX: Final = 64
ROUTER_NAME: Final = "sessions-router"
DIRECTORY_FILE: Final = "directory.sqlite"
ACTOR_PREFIX: Final = "conversation-"


def shard_of(name: str, count: int) -> int:
    """Return the shard of a conversation."""
    if count == 1:
        return 0
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % count


@dataclass(frozen=True, slots=True)
class Shard:
    """One of so many routers."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.index < self.count

    @property
    def router_name(self) -> str:
        """The name of its router's actor."""
        return ROUTER_NAME if self.index == 0 else f"{ROUTER_NAME}-{self.index}"

    @property
    def directory_file(self) -> str:
        """The name of its directory's file in the storage root."""
        return DIRECTORY_FILE if self.index == 0 else f"directory-{self.index}.sqlite"

    @property
    def actor_prefix(self) -> str:
        """What the names of its conversations' actors begin with; no other shard's do."""
        return ACTOR_PREFIX if self.index == 0 else f"shard-{self.index}-{ACTOR_PREFIX}"

    def holds(self, name: str) -> bool:
        """Say whether a conversation is its own."""
        return shard_of(name, self.count) == self.index

    def share(self, total: int) -> int:
        """Return its part of a number that all shards together come to."""
        return total * (self.index + 1) // self.count - total * self.index // self.count

    @property
    def all(self) -> list[Shard]:
        """Every shard of the deployment."""
        return [Shard(index, self.count) for index in range(self.count)]


WHOLE: Final = Shard()
