"""Evening out: against a slow version, and what holds of every plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from router.balance import GOAL, TRIGGER, DiskLoad, Held, Move, plan_moves
from router.placement import NodeView

BYTES_MIN = 10
World = tuple[list[NodeView], dict[str, DiskLoad], list[Held]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A few nodes on a few disks, some draining, and conversations that lie and live anywhere."""
    disks = [f"d{i}" for i in range(draw(st.integers(1, 4)))]
    views = []
    for i in range(draw(st.integers(1, 5))):
        disk = draw(st.sampled_from([*disks, None]))
        most = draw(st.integers(4, 30))
        draining = draw(st.sampled_from([False, False, False, True]))
        views.append(NodeView(f"n{i}", disk, 0, 0, 0, most, draining))
    held, active = [], Counter[str]()
    sizes = st.one_of(st.integers(0, 50), st.integers(0, 2000), st.just(100))
    for i in range(draw(st.integers(0, 40))):
        disk = draw(st.sampled_from(disks))
        homes = [v.node_id for v in views if v.disk_id == disk and active[v.node_id] < v.max_active]
        node = draw(st.sampled_from([None, *homes]))
        if node is not None:
            active[node] += 1
        held.append(Held(f"c{i:02}", disk, draw(sizes), node))
    views = [replace(view, active=active[view.node_id]) for view in views]
    return views, loads(disks, held), held


def loads(disks: list[str], held: list[Held]) -> dict[str, DiskLoad]:
    found = {}
    for disk in disks:
        sizes = [one.bytes for one in held if one.disk_id == disk]
        found[disk] = DiskLoad(sum(sizes), len(sizes))
    return found


def carried_out(world: World, moves: list[Move]) -> World:
    """What the moves make of it."""
    views, disks, held = world
    disk_of = {view.node_id: view.disk_id for view in views}
    active = Counter({view.node_id: view.active for view in views})
    after = {one.name: one for one in held}
    for move in moves:
        one, disk = after[move.name], disk_of[move.node_id]
        assert disk is not None
        assert one.disk_id == move.source_disk_id
        assert move.copies == (disk != one.disk_id)
        if one.node_id is not None:
            active[one.node_id] -= 1
            active[move.node_id] += 1
        node = None if one.node_id is None else move.node_id
        after[move.name] = Held(one.name, disk, one.bytes, node)
    moved = list(after.values())
    views = [replace(view, active=active[view.node_id]) for view in views]
    return views, loads(list(disks), moved), moved


def deviations(world: World) -> list[float]:
    views, disks, _ = world
    used = {view.disk_id for view in views if not view.draining and view.disk_id is not None}
    mean = sum(disks[disk].bytes for disk in used) / max(1, len(used))
    return sorted(abs(disks[disk].bytes - mean) for disk in used)


def node_loads(world: World) -> list[float]:
    views = world[0]
    return [v.active / v.max_active for v in views if not v.draining and v.disk_id is not None]


def slow_plan(world: World) -> list[Move]:
    """The rules, looked up anew for each step in lists of everything."""
    views, _, held = world
    nodes = {v.node_id: v for v in views if not v.draining and v.disk_id is not None}
    mounted = sorted({str(node.disk_id) for node in nodes.values()})
    now = {one.name: one for one in held if one.disk_id in mounted}
    others = Counter({n: node.active for n, node in nodes.items()})
    for one in now.values():
        if one.node_id in nodes:
            others[one.node_id] -= 1
    target_of: dict[str, str] = {}

    def lying(disk: str) -> int:
        return sum(one.bytes for one in now.values() if one.disk_id == disk)

    def count(disk: str) -> int:
        return sum(one.disk_id == disk for one in now.values())

    def active(node: str) -> int:
        return others[node] + sum(one.node_id == node for one in now.values())

    def load(node: str) -> float:
        return active(node) / nodes[node].max_active

    mean = sum(map(lying, mounted)) / max(1, len(mounted))
    trigger, goal = max(mean * TRIGGER, BYTES_MIN), max(mean * GOAL, BYTES_MIN / 2)

    def even() -> bool:
        return all(abs(lying(disk) - mean) <= trigger for disk in mounted)

    def put(name: str, node: str) -> None:
        one = now[name]
        serving = None if one.node_id is None else node
        now[name] = Held(name, str(nodes[node].disk_id), one.bytes, serving)
        target_of[name] = node

    def bytes_step() -> bool:
        for source in sorted(mounted, key=lambda d: (lying(d), d), reverse=True):
            for target in sorted(mounted, key=lambda d: (lying(d), d)):
                surplus, room = lying(source) - mean, mean - lying(target)
                if surplus <= 0 or room <= 0 or max(surplus, room) <= goal:
                    continue
                wanted = min(surplus, room)
                fits = [
                    (abs(one.bytes - wanted), one.bytes, one.name)
                    for one in now.values()
                    if one.disk_id == source
                    and max(1, goal / count(source)) <= one.bytes <= surplus + room - goal / 2
                ]
                if fits:
                    off, size, _ = min(fits)
                    alike = [one for one in fits if one[:2] == (off, size)]
                    name = (max if size < wanted else min)(alike)[2]
                    there = [n for n, node in nodes.items() if node.disk_id == target]
                    put(name, min(there, key=lambda n: (load(n), n)))
                    return True
        return False

    def activity_step(across: bool) -> bool:
        ranked = sorted(nodes, key=lambda n: (load(n), n))
        for source in reversed(ranked):
            apart = {n: nodes[n].disk_id != nodes[source].disk_id for n in nodes}
            for target in sorted(ranked, key=lambda n: (apart[n], load(n), n)):
                if load(source) - load(target) <= GOAL:
                    continue
                fewer = (active(source) - 1) / nodes[source].max_active
                if fewer < (active(target) + 1) / nodes[target].max_active:
                    continue
                serving = [(o.bytes, o.name) for o in now.values() if o.node_id == source]
                if not serving or (apart[target] and not across):
                    continue
                size, name = min(serving)
                if apart[target]:
                    left = lying(str(nodes[source].disk_id)) - size
                    there = lying(str(nodes[target].disk_id)) + size
                    if max(abs(left - mean), abs(there - mean)) > trigger:
                        continue
                put(name, target)
                return True
        return False

    while not even() and bytes_step():
        while bytes_step():
            pass
    spread = [load(node) for node in nodes]
    if spread and max(spread) - min(spread) > TRIGGER:
        across = even()
        while activity_step(across):
            pass
    origin = {one.name: one for one in held}
    return [
        Move(name, origin[name].disk_id, node, now[name].disk_id != origin[name].disk_id)
        for name, node in target_of.items()
        if now[name] != origin[name]
    ]


@given(worlds())
def test_as_the_slow_version(world: World) -> None:
    assert plan_moves(*world, bytes_min=BYTES_MIN) == slow_plan(world)


@given(worlds())
def test_planning_again_after_the_moves_plans_none(world: World) -> None:
    after = carried_out(world, plan_moves(*world, bytes_min=BYTES_MIN))
    assert plan_moves(*after, bytes_min=BYTES_MIN) == []


@given(worlds())
def test_each_moves_once_and_to_where_it_may(world: World) -> None:
    moves = plan_moves(*world, bytes_min=BYTES_MIN)
    assert len({move.name for move in moves}) == len(moves)
    open_nodes = {v.node_id for v in world[0] if not v.draining and v.disk_id is not None}
    assert {move.node_id for move in moves} <= open_nodes
    used = {view.disk_id for view in world[0] if not view.draining}
    assert {move.source_disk_id for move in moves} <= used
    after = carried_out(world, moves)
    full = {v.node_id for v in world[0] if v.active >= v.max_active}
    assert all(v.active <= v.max_active or v.node_id in full for v in after[0] if not moves)


@given(worlds())
def test_disks_and_nodes_never_become_less_alike(world: World) -> None:
    moves = plan_moves(*world, bytes_min=BYTES_MIN)
    after = carried_out(world, moves)
    before_most, after_most = max(deviations(world), default=0), max(deviations(after), default=0)
    mean = sum(load.bytes for load in world[1].values()) / max(1, len(deviations(world)))
    assert after_most <= max(before_most, mean * TRIGGER, BYTES_MIN)
    if not any(move.copies for move in moves):  # only activity was evened out
        spread = [max(loads, default=0) - min(loads, default=0) for loads in
                  (node_loads(world), node_loads(after))]  # fmt: skip
        assert spread[1] <= max(spread[0], TRIGGER)


@given(worlds())
def test_conversations_of_one_size_end_even(world: World) -> None:
    views, disks, held = world
    alike = [replace(one, bytes=4) for one in held]
    even = (views, loads(list(disks), alike), alike)
    after = carried_out(even, plan_moves(*even, bytes_min=BYTES_MIN))
    assert all(off <= BYTES_MIN for off in deviations(after))
