"""A node's lease: one word that only moves forward."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_actor import StorageError
from sessions_actor.lease import NodeLease, lease_clock, lease_file, open_lease


class Clock:
    """Seconds, as told."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_nothing_holds_before_the_first_grant() -> None:
    lease = NodeLease.in_memory()
    assert not lease.holds(1)
    assert not lease.ended(1)
    assert lease.left_s == 0


def test_it_holds_in_its_term_until_it_runs_out() -> None:
    clock = Clock()
    lease = NodeLease.in_memory(clock)
    lease.grant(3, clock.s, 10.0)
    assert lease.holds(3)
    assert not lease.holds(2)
    assert not lease.holds(4)
    assert lease.ended(2)
    assert not lease.ended(3)
    clock.s += 10.0
    assert not lease.holds(3)
    assert not lease.ended(3)


def test_it_ends_at_the_node_before_it_ends_at_the_router() -> None:
    clock = Clock()
    lease = NodeLease.in_memory(clock)
    lease.grant(1, clock.s, 10.0)
    assert 9.5 < lease.left_s < 10.0


@given(st.permutations([(1, 0.0), (1, 5.0), (2, 3.0), (2, 8.0), (3, 1.0)]))
def test_grants_in_any_order_come_to_the_same(grants: list[tuple[int, float]]) -> None:
    lease = NodeLease.in_memory(lambda: 2.0)
    for term, asked_at in grants:
        lease.grant(term, asked_at, 10.0)
    assert lease.term == 3
    assert lease.holds(3)
    assert lease.left_s == pytest.approx(1.0 + 9.9 - 2.0, abs=0.01)


def test_processes_share_it_by_its_file(tmp_path: Path) -> None:
    one, other = open_lease(tmp_path / "lease"), open_lease(tmp_path / "lease")
    one.grant(1, lease_clock(), 60.0)
    assert other.holds(1)
    assert stat.S_IMODE((tmp_path / "lease").stat().st_mode) == 0o600


def test_routers_nodes_and_deployments_have_leases_of_their_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = {
        lease_file(namespace, router, node)
        for namespace in "ab"
        for router in "ab"
        for node in ("n", "../../n")
    }
    assert len(files) == 8
    (folder,) = {file.parent for file in files}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"sessions-actor-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StorageError, match="remove it"):
        lease_file("namespace", "router", "node")
