"""Where conversations go."""

from router.placement import (
    ACTIVE_MAX,
    ACTIVE_MIN,
    NodeView,
    candidates,
    default_max_active,
    drain_targets,
    migration_targets,
)


def node(
    node_id: str,
    disk: str | None = "d",
    *,
    active: int = 0,
    idle: int = 0,
    max_active: int = 10,
    draining: bool = False,
    leased: bool = True,
) -> NodeView:
    return NodeView(node_id, disk, active, idle, active + idle, max_active, draining, leased=leased)


def ids(nodes: list[NodeView]) -> list[str]:
    return [one.node_id for one in nodes]


def test_a_new_conversation_goes_where_there_is_most_room() -> None:
    nodes = [node("a", active=5), node("b", active=1), node("c", active=1, max_active=100)]
    assert ids(candidates(nodes, None)) == ["c", "b", "a"]


def test_the_order_of_equals_is_stable() -> None:
    nodes = [node("b"), node("a")]
    assert ids(candidates(nodes, None)) == ids(candidates(nodes[::-1], None)) == ["a", "b"]


def test_a_file_binds_a_conversation_to_its_disk() -> None:
    nodes = [node("a", "other"), node("b", "d", active=9), node("c", None)]
    assert ids(candidates(nodes, "d")) == ["b", "c"]
    assert ids(candidates(nodes, "elsewhere")) == ["c"]


def test_a_draining_node_takes_nothing_new_but_serves_what_only_it_can_open() -> None:
    nodes = [node("a", "d", draining=True), node("b", "d", active=9), node("c", "x")]
    assert ids(candidates(nodes, None)) == ["c", "b"]
    assert ids(candidates(nodes, "d")) == ["b"]
    assert ids(candidates(nodes[:1], "d")) == ["a"]
    assert ids(candidates(nodes[:1], None)) == []


def test_a_node_that_does_not_renew_its_lease_serves_what_only_it_can_open() -> None:
    nodes = [node("a", "d", idle=5, leased=False), node("b", "d", active=9), node("c", "x")]
    assert ids(candidates(nodes, None)) == ["c", "b"]
    assert ids(candidates(nodes, "d")) == ["b"]
    assert ids(candidates(nodes[:1], "d")) == ["a"]
    assert ids(candidates(nodes[:1], None)) == ["a"]  # a deployment that has just started
    assert ids(candidates([nodes[0], node("b", "d", draining=True)], "d")) == ["b"]


def test_a_full_node_stands_behind_one_with_room() -> None:
    nodes = [node("a", active=2, max_active=2), node("b", active=9, max_active=10)]
    assert ids(candidates(nodes, None)) == ["b", "a"]


def test_a_migration_leaves_its_node_if_it_can() -> None:
    assert ids(migration_targets([node("a"), node("b", active=9)], "a")) == ["b", "a"]
    assert ids(migration_targets([node("a")], "a")) == ["a"]
    assert ids(drain_targets([node("a"), node("b", active=9)], "a")) == ["b"]


def test_default_capacity_follows_memory_within_bounds() -> None:
    assert default_max_active(0) == ACTIVE_MIN
    assert default_max_active(1 << 50) == ACTIVE_MAX
    sizes = [default_max_active(gib << 30) for gib in range(1, 64)]
    assert sizes == sorted(sizes)
