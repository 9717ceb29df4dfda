"""Decide which conversations go where, so that disks hold alike and nodes are alike busy. Pure.

Bytes are evened out over the disks, active conversations over the nodes, in proportion to what a
node takes (`max_active`). Two thresholds keep it still: nothing moves until something is out by a
tenth (`TRIGGER`), and then moves go on until all is within a fortieth (`GOAL`) or no move helps.
Each step looks at the state alone, so a state that was evened out stays as it is: planning again,
after the moves, plans none.

- Every move of bytes brings a disk above the average and one below it closer together. What would
  only change their places stays, and so does what is so small that a disk full of its like would
  not matter.
- A conversation changes its node for the sake of activity only if the disks stay within the
  trigger. Between nodes that mount one disk it takes no copy.

What it does not do: move, ask, or know a clock. Draining nodes and disks that nobody else mounts
are left out: emptying them is another job.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sessions_actor.limits import MIB

from .placement import NodeView

TRIGGER: Final = 0.10
GOAL: Final = 0.025
# Below this much, disks are not worth evening out.
BYTES_MIN: Final = 16 * MIB

assert 0 < GOAL < TRIGGER < 1


@dataclass(frozen=True, slots=True)
class Held:
    """A conversation that may move; `node_id` is that of its actor, None while it hibernates."""

    name: str
    disk_id: str
    bytes: int
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class DiskLoad:
    """All that a disk holds, also what is not offered for moving."""

    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class Move:
    """Where a conversation goes; `copies` says that its file goes to another disk."""

    name: str
    source_disk_id: str
    node_id: str
    copies: bool


def plan_moves(
    nodes: Sequence[NodeView],
    disks: Mapping[str, DiskLoad],
    held: Iterable[Held],
    *,
    bytes_min: int = BYTES_MIN,
) -> list[Move]:
    """Return the moves that even out a deployment, none when it is even enough.

    Args:
        disks: what lies on each disk.
        held: the conversations that may move, each at most once; one alone is enough where
            disks hold too many to list, best the largest of each.
        bytes_min: see `BYTES_MIN`.
    Cost: for each move, time in proportion to the nodes; the logarithm of `held`.
    """
    state = _State(nodes, disks, held, bytes_min)
    state.even_out_bytes()
    state.even_out_activity()
    return state.moves()


_Sized = tuple[int, str]


class _State:
    """What the plan has come to: what each disk and node holds, and where who moved stands."""

    def __init__(
        self,
        nodes: Sequence[NodeView],
        disks: Mapping[str, DiskLoad],
        held: Iterable[Held],
        bytes_min: int,
    ) -> None:
        usable = [n for n in nodes if not n.draining and n.disk_id is not None]
        self.nodes = {node.node_id: node for node in usable}
        self.active = {node.node_id: node.active for node in usable}
        mounted = sorted({node.disk_id for node in usable if node.disk_id is not None})
        self.bytes = {disk: disks[disk].bytes if disk in disks else 0 for disk in mounted}
        self.counts = {disk: disks[disk].count if disk in disks else 0 for disk in mounted}
        # What each disk and node offers, by size.
        self.sizes: dict[str, list[_Sized]] = {disk: [] for disk in mounted}
        self.serving: dict[str, list[_Sized]] = {node_id: [] for node_id in self.nodes}
        self.origin: dict[str, Held] = {}
        self.placed: dict[str, Held] = {}
        self.targets: dict[str, str] = {}
        for one in held:
            if one.disk_id not in self.sizes:
                continue
            self.origin[one.name] = self.placed[one.name] = one
            self.sizes[one.disk_id].append((one.bytes, one.name))
            if one.node_id in self.serving:
                self.serving[one.node_id].append((one.bytes, one.name))
        for listed in (*self.sizes.values(), *self.serving.values()):
            listed.sort()
        self.mean = sum(self.bytes.values()) / max(1, len(mounted))
        self.trigger = max(self.mean * TRIGGER, bytes_min)
        self.goal = max(self.mean * GOAL, bytes_min / 2)

    # ------------------------------------------------------------------------------- bytes

    def within_trigger(self) -> bool:
        """Say whether every disk holds about the average."""
        return all(abs(held - self.mean) <= self.trigger for held in self.bytes.values())

    def even_out_bytes(self) -> None:
        """Move files until every disk is within the goal, or nothing more helps."""
        if self.within_trigger():
            return
        while (step := self._bytes_step()) is not None:
            self._place(*step)

    def _bytes_step(self) -> tuple[str, str] | None:
        """Choose a conversation and its node: off the fullest disk onto the emptiest."""
        ranked = sorted(self.bytes, key=lambda disk: (self.bytes[disk], disk))
        for source in reversed(ranked):
            for target in ranked:
                surplus = self.bytes[source] - self.mean
                room = self.mean - self.bytes[target]
                if surplus <= 0 or room <= 0:
                    break
                if max(surplus, room) <= self.goal:
                    continue
                name = self._fitting(source, surplus, room)
                if name is not None:
                    return name, self._least_busy(target)
        return None

    def _fitting(self, source: str, surplus: float, room: float) -> str | None:
        """Return the conversation whose size is closest to what should go, if one helps."""
        wanted = min(surplus, room)
        size_min = self.goal / max(1, self.counts[source])
        # Above half the difference the two disks come closer by twice what is missing to it all.
        size_max = surplus + room - self.goal / 2
        listed = self.sizes[source]
        at = bisect_left(listed, (wanted, ""))
        near = listed[max(0, at - 1) : at + 1]
        fits = [one for one in near if max(1, size_min) <= one[0] <= size_max]
        return min(fits, key=lambda one: (abs(one[0] - wanted), one))[1] if fits else None

    def _least_busy(self, disk_id: str) -> str:
        mounting = [n for n, node in self.nodes.items() if node.disk_id == disk_id]
        return min(mounting, key=lambda node_id: (self._load(node_id), node_id))

    # ---------------------------------------------------------------------------- activity

    def _load(self, node_id: str) -> float:
        return self.active[node_id] / self.nodes[node_id].max_active

    def even_out_activity(self) -> None:
        """Move active conversations until every node is alike busy, or nothing more helps."""
        loads = [self._load(node_id) for node_id in self.nodes]
        if not loads or max(loads) - min(loads) <= TRIGGER:
            return
        across = self.within_trigger()
        while (step := self._activity_step(across)) is not None:
            self._place(*step)

    def _activity_step(self, across: bool) -> tuple[str, str] | None:
        """Choose a conversation and its node: from the busiest to the idlest, if one may go.

        Nodes that mount the same disk come first: they need no copy.
        """
        ranked = sorted(self.nodes, key=lambda node_id: (self._load(node_id), node_id))
        for source in reversed(ranked):
            near = [target for target in ranked if self._on_one_disk(source, target)]
            far = [target for target in ranked if not self._on_one_disk(source, target)]
            for target in (*near, *far):
                if self._load(source) - self._load(target) > GOAL:
                    name = self._willing(source, target, across)
                    if name is not None:
                        return name, target
        return None

    def _on_one_disk(self, one: str, other: str) -> bool:
        return self.nodes[one].disk_id == self.nodes[other].disk_id

    def _willing(self, source: str, target: str, across: bool) -> str | None:
        """Return the conversation that leaves a node for another, if that makes them more alike."""
        after = (self.active[source] - 1) / self.nodes[source].max_active
        if after < (self.active[target] + 1) / self.nodes[target].max_active:
            return None
        if not self.serving[source]:
            return None
        size, name = self.serving[source][0]
        if self._on_one_disk(source, target):
            return name
        if not across:
            return None
        left = self.bytes[self.nodes[source].disk_id or ""] - size
        there = self.bytes[self.nodes[target].disk_id or ""] + size
        even = max(abs(left - self.mean), abs(there - self.mean)) <= self.trigger
        return name if even else None

    # ------------------------------------------------------------------------------- moves

    def _place(self, name: str, node_id: str) -> None:
        """Move a conversation in thought."""
        before, disk = self.placed[name], self.nodes[node_id].disk_id
        assert disk is not None
        item = (before.bytes, name)
        if disk != before.disk_id:
            _take(self.sizes[before.disk_id], item)
            insort(self.sizes[disk], item)
            self.bytes[before.disk_id] -= before.bytes
            self.bytes[disk] += before.bytes
            self.counts[before.disk_id] -= 1
            self.counts[disk] += 1
        if before.node_id is not None:
            if before.node_id in self.serving:
                _take(self.serving[before.node_id], item)
                self.active[before.node_id] -= 1
            insort(self.serving[node_id], item)
            self.active[node_id] += 1
        serving = None if before.node_id is None else node_id
        self.placed[name] = Held(name, disk, before.bytes, serving)
        self.targets[name] = node_id

    def moves(self) -> list[Move]:
        """Return where everything that ends elsewhere goes, in the order of the last steps."""
        found = []
        for name, node_id in self.targets.items():
            origin, end = self.origin[name], self.placed[name]
            if end != origin:
                found.append(Move(name, origin.disk_id, node_id, end.disk_id != origin.disk_id))
        return found


def _take(listed: list[_Sized], item: _Sized) -> None:
    at = bisect_left(listed, item)
    assert listed[at] == item
    del listed[at]
