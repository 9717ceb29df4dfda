"""A directory split over several routers: who holds what, and many answers made one."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router.directory import Directory
from router.merging import (
    merge_active,
    merge_job,
    merge_jobs,
    merge_nodes,
    merge_reports,
    merged_names,
)
from router.models import ConversationInfo, JobInfo, JobReport, NodeInfo
from router.pool import Pool
from router.settings import Settings
from router.shards import SHARDS_MAX, Shard, shard_of
from sessions_actor.errors import StorageError

from .fake_cluster import FakeCluster


def test_a_conversation_stays_with_its_shard() -> None:
    """Recorded: another answer would lose what a deployment holds."""
    assert [shard_of(name, 4) for name in ("alice", "bob", "é", "user-17", "a/b")] == [
        3,
        2,
        3,
        2,
        1,
    ]
    assert {shard_of(str(i), 1) for i in range(100)} == {0}
    for count in (2, 3, 8, SHARDS_MAX):
        found = Counter(shard_of(f"c{i}", count) for i in range(200 * count))
        assert set(found) == set(range(count))
        assert max(found.values()) < 2 * min(found.values()) + 100


def test_the_first_shard_has_the_names_of_a_deployment_with_one_router() -> None:
    for count in (1, 4):
        first = Shard(0, count)
        names = (first.router_name, first.directory_file, first.actor_prefix)
        assert names == ("sessions-router", "directory.sqlite", "conversation-")
    every = Shard(0, 12).all
    assert (
        len({one.router_name for one in every}) == len({one.directory_file for one in every}) == 12
    )
    for one in every:  # a router finds its own actors again and nobody else's
        for other in every:
            mine = f"{other.actor_prefix}0".startswith(one.actor_prefix)
            assert mine == (one == other)
    assert sum(Shard(i, 5).holds("alice") for i in range(5)) == 1


@given(st.integers(0, 10_000), st.integers(1, SHARDS_MAX))
def test_shares_come_to_the_whole(total: int, count: int) -> None:
    shares = [shard.share(total) for shard in Shard(0, count).all]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


async def test_what_a_node_holds_is_shared_out(tmp_path: Path) -> None:
    cluster = FakeCluster({"node-0": tmp_path})

    async def evict(node_id: str, *, idle_s: float, turn: bool = False) -> bool:
        return False

    limits = []
    for shard in Shard(0, 3).all:
        pool = Pool(cluster, warm_actors=2, max_active=10, evict=evict, shard=shard)
        await pool.refresh()
        limits.append((pool.views()[0].max_active, pool._warm))
    assert sum(most for most, _ in limits) == 10
    assert sum(warm for _, warm in limits) == 2


def test_settings_that_do_not_fit_together() -> None:
    with pytest.raises(ValidationError, match="at least router_shards"):
        Settings(router_shards=4, max_active=3)
    with pytest.raises(ValidationError, match=r"router_shards is 1 with a replica_url.*reshard 1"):
        Settings(router_shards=2, replica_url="file:///tmp/x", durability="async")
    with pytest.raises(ValidationError):
        Settings(router_shards=0)
    assert Settings().router_shards == 1


def test_another_number_of_routers_is_refused_and_the_way_out_named(tmp_path: Path) -> None:
    Directory(tmp_path).close()
    with pytest.raises(StorageError, match=r"over 1 routers, not 4.*ROUTER_SHARDS=1.*reshard 4"):
        Directory(tmp_path, shard=Shard(0, 4))
    Directory(tmp_path).close()
    other = tmp_path / "other"
    for shard in Shard(0, 2).all:
        Directory(other, shard=shard).close()
        Directory(other, shard=shard).close()
    assert sorted(f.name for f in other.glob("*.sqlite")) == [
        "directory-1.sqlite", "directory.sqlite"
    ]  # fmt: skip
    with pytest.raises(StorageError, match="over 2 routers, not 1"):
        Directory(other)


def test_a_directory_made_before_there_could_be_several_has_one(tmp_path: Path) -> None:
    Directory(tmp_path).close()
    with closing(apsw.Connection(str(tmp_path / "directory.sqlite"))) as db:
        db.execute("DELETE FROM sessions_actor_meta WHERE key = 'router_shards'")
    with pytest.raises(StorageError, match="over 1 routers"):
        Directory(tmp_path, shard=Shard(0, 2))
    Directory(tmp_path).close()


# ----------------------------------------------------------------------------------- merging


class Routers:
    """Holds names as so many routers would, and counts what it is asked."""

    def __init__(self, names: set[str], count: int) -> None:
        self.count, self.asked = count, 0
        self.names = [
            sorted((n for n in names if shard_of(n, count) == i), key=str.encode)
            for i in range(count)
        ]

    async def page(self, index: int, after: str | None, limit: int) -> list[str]:
        self.asked += 1
        low = b"" if after is None else after.encode()
        return [n for n in self.names[index] if n.encode() > low][:limit]


@given(
    st.sets(st.text(min_size=1, max_size=3), max_size=60),
    st.integers(1, 5),
    st.integers(1, 7),
    st.none() | st.integers(0, 70),
    st.none() | st.text(min_size=1, max_size=2),
)
async def test_a_merged_list_skips_and_repeats_nothing(
    names: set[str], count: int, page: int, limit: int | None, after: str | None
) -> None:
    names = {n for n in names if not any("\ud800" <= c <= "\udfff" for c in n)}
    routers = Routers(names, count)
    found = [n async for n in merged_names(routers.page, count, after, limit, page)]
    low = b"" if after is None else after.encode()
    assert found == sorted((n for n in names if n.encode() > low), key=str.encode)[:limit]


async def test_a_merged_list_asks_each_router_for_little() -> None:
    routers = Routers({f"c{i:04}" for i in range(1000)}, 4)
    first = merged_names(routers.page, 4, None, None, 50)
    assert await anext(first) == "c0000"
    assert routers.asked == 4
    routers.asked = 0
    assert len([n async for n in merged_names(routers.page, 4, None, None, 50)]) == 1000
    assert routers.asked <= 4 * (1000 // 4 // 50 + 3)


async def test_names_made_meanwhile_appear_if_they_come_later() -> None:
    routers = Routers({f"c{i}" for i in range(6)}, 3)
    found = []
    async for name in merged_names(routers.page, 3, None, None, 1):
        found.append(name)
        if name == "c2":
            routers.names[shard_of("c1x", 3)].insert(0, "c1x")
            routers.names[shard_of("c9", 3)].append("c9")
    assert found == ["c0", "c1", "c2", "c3", "c4", "c5", "c9"]


def job(**given: Any) -> JobInfo:
    chosen = {
        "id": "j", "kind": "drain", "node_id": "n", "state": "done", "total": 3, "moved": 2,
        "failed": 1, "bytes": 10, "started_at": "2026-01-01", "ended_at": "2026-01-02",
    }  # fmt: skip
    return JobInfo(**(chosen | given))


def test_the_parts_of_a_job_add_up() -> None:
    whole = merge_job([job(), job(state="running", ended_at=None, started_at="2025-12-31")])
    assert (whole.state, whole.ended_at, whole.started_at) == ("running", None, "2025-12-31")
    assert (whole.total, whole.moved, whole.failed, whole.bytes) == (6, 4, 2, 20)
    whole = merge_job([job(), job(state="failed", error="gone", ended_at="2026-01-03")])
    assert (whole.state, whole.error, whole.ended_at) == ("failed", "gone", "2026-01-03")
    assert merge_job([job(), job(state="cancelled")]).state == "cancelled"
    assert merge_job([job(announced=True), job()]).announced is False
    several = merge_jobs([[job(), job(id="k", started_at="2025")], [job()], []])
    assert [(one.id, one.moved) for one in several] == [("k", 2), ("j", 4)]
    report = JobReport("j", "drain", "n", "done", 2, 10, (), {"a": "no"}, 1.5)
    other = JobReport("j", "drain", "n", "cancelled", 1, 5, (), {"b": "nor"}, 2.5, "why")
    both = merge_reports([report, other])
    assert (both.moved, both.bytes, both.failed) == (3, 15, {"a": "no", "b": "nor"})
    assert (both.state, both.seconds, both.error) == ("cancelled", 2.5, "why")
    assert merge_reports([report]) == report


def test_what_each_router_has_on_a_node_adds_up() -> None:
    one = NodeInfo("n1", "a", "alive", None, 1, 2, 5)
    other = NodeInfo("n1", "a", "draining", "d", 3, 4, 6)
    alone = NodeInfo("n2", "b", "alive", "d", 1, 1, 1)
    assert merge_nodes([[one], [other, alone]]) == [
        NodeInfo("n1", "a", "draining", "d", 4, 6, 11), alone
    ]  # fmt: skip
    assert merge_nodes([[one, alone]]) == [one, alone]


def test_active_conversations_come_as_from_one_router() -> None:
    def info(name: str, pid: int | None, at: str) -> ConversationInfo:
        return ConversationInfo(name, "active", 1, "n", "a", pid, 1, 1, at, at)

    answers = [[info("s", None, "1"), info("a", 1, "3")], [info("b", 1, "4"), info("c", 1, "2")]]
    assert [one.name for one in merge_active(answers, 3)] == ["s", "b", "a"]
