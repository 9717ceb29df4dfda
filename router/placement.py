"""Decide where a conversation goes. Pure: it proposes, the directory decides.

A conversation's file binds it to the nodes that mount its disk; a new conversation may go
anywhere. Among the nodes that may take it, the one with the most room wins.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sessions_actor.limits import MIB

# Unique memory of one actor process, with room for its cache and a large message.
ACTOR_MEMORY_BYTES = 96 * MIB
ACTIVE_MIN, ACTIVE_MAX = 4, 512

assert 1 <= ACTIVE_MIN <= ACTIVE_MAX


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live node as placement sees it; `processes` counts bound, idle and starting actors.

    `leased` says that it renews its lease: one that does not is likely dead, frozen or cut off,
    long before the cluster notices.
    """

    node_id: str
    disk_id: str | None
    active: int
    idle: int
    processes: int
    max_active: int
    draining: bool = False
    machine_id: str = ""
    leased: bool = True


def default_max_active(memory_bytes: int) -> int:
    """Return how many active conversations half of a node's memory holds."""
    return max(ACTIVE_MIN, min(ACTIVE_MAX, memory_bytes // 2 // ACTOR_MEMORY_BYTES))


def may_host(node: NodeView, disk_id: str | None) -> bool:
    """Say whether a node can open a file on this disk; None stands for a file yet to be made.

    A node whose disk is not known yet may turn out to mount it.
    """
    if disk_id is None:
        return not node.draining
    return node.disk_id is None or node.disk_id == disk_id


def candidates(
    nodes: Iterable[NodeView],
    disk_id: str | None,
    *,
    avoid: Collection[str] = (),
    machine_id: str | None = None,
    only: str | None = None,
) -> list[NodeView]:
    """Return the nodes that may take a conversation, best first.

    With `machine_id`, those of one machine only: there the file's lock tells whether an earlier
    owner is gone.

    A draining node serves only what no other node can open, and so does one whose lease runs out.
    Nodes that are known to mount the
    disk come first, then those with an idle actor or room for one, then those with the fewest
    active conversations for their size. The node's id breaks a tie, so the order is stable.
    """

    def rank(node: NodeView) -> tuple[bool, bool, float, str]:
        return (
            disk_id is not None and node.disk_id != disk_id,
            node.idle == 0 and node.processes >= node.max_active,
            node.active / node.max_active,
            node.node_id,
        )

    able = [
        node
        for node in nodes
        if only in (None, node.node_id)
        and node.node_id not in avoid
        and may_host(node, disk_id)
        and machine_id in (None, node.machine_id)
    ]
    for fit in (
        [node for node in able if node.leased and not node.draining],
        [node for node in able if node.leased],
        [node for node in able if not node.draining],
    ):
        if fit:
            return sorted(fit, key=rank)
    return sorted(able, key=rank)


def migration_targets(nodes: Iterable[NodeView], source_node_id: str) -> list[NodeView]:
    """Return the nodes a conversation may move to, best first; its own node stands last."""
    rest = candidates(nodes, None)
    return sorted(rest, key=lambda node: node.node_id == source_node_id)


def drain_targets(nodes: Iterable[NodeView], source_node_id: str) -> list[NodeView]:
    """Return the nodes that may take what a draining node holds, best first."""
    return candidates(nodes, None, avoid={source_node_id})
