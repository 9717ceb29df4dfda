"""What people who run such systems ran into, where two owners, a crash or a retry is at work.

Real actors and files in this process, or a process that is killed. What needs a cluster stands in
tests/cluster and tests/fault; `REPORTS` says where each report is tested.
"""

import asyncio
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import wire
from sessions_actor.actor import ActivationSpec, ConversationActor, actor_options
from sessions_actor.channel import Channel
from sessions_actor.errors import MigratingError, StaleEpochError, StorageError
from sessions_actor.lease import NodeLease
from tests.conformance.support import grow, history, opened, said, written
from tests.unit.test_channel import Directory

ROOT = Path(__file__).resolve().parents[2]
FILE = "conversations/alice.sqlite"

REPORTS = {
    5: "tests/conformance/test_user_reports_owners.py::test_two_owners",
    6: "tests/conformance/test_user_reports_owners.py::test_what_was_acknowledged_before_a_kill",
    7: "tests/conformance/test_user_reports_owners.py::test_damaged_sequence_numbers",
    8: "tests/conformance/test_user_reports_owners.py::test_a_long_call_while_its_conversation",
    9: "tests/cluster/test_leases.py::test_past_its_lease_a_node_acknowledges_nothing",
    10: "tests/",  # by name, wherever replication is tested
    11: "tests/fault/test_cluster_faults.py::test_actors_are_frozen_and_acknowledge_nothing",
    14: "tests/conformance/test_better_compaction.py",
    24: "tests/conformance/test_better_search.py",
    26: "tests/conformance/test_fixtures.py",
    29: "tests/conformance/test_user_reports_owners.py::test_an_actor_holds_a_resource",
    30: "tests/conformance/test_user_reports_owners.py::test_an_answer_that_was_lost",
}


@pytest.mark.parametrize("number", REPORTS)
def test_each_report_is_tested_where_it_says(number: int) -> None:
    file, _, name = REPORTS[number].partition("::")
    assert (ROOT / file).exists()
    if name:
        assert re.search(rf"^(async )?def {name}", (ROOT / file).read_text(), re.MULTILINE)


def leased() -> NodeLease:
    """A lease that stands for as long as a test takes."""
    lease = NodeLease.in_memory()
    lease.grant(1, lease.now(), 3600)
    return lease


def spec(epoch: int, object_class: str = "sessions_actor.conversation:Conversation") -> Any:
    return ActivationSpec("alice", epoch, FILE, 10**9, object_class)


async def told(actor: ConversationActor, epoch: int, part: wire.Part) -> wire.Answer:
    frame = wire.pack_request("alice", epoch, [part])
    (answer,) = wire.unpack_reply(await actor.serve(frame))
    return answer


def appending(message_id: str) -> wire.Part:
    args = wire.dump_args([said(message_id)], {}, ["message"])
    return wire.Part("", "append_message", args)


# 5. Two owners interleave.
async def test_two_owners_never_write_one_conversation(tmp_path: Path) -> None:
    one, two = (ConversationActor(str(tmp_path), leased) for _ in range(2))
    await one.activate(spec(1))
    assert (await told(one, 1, appending("m1"))).tag == wire.OK
    with pytest.raises(StorageError, match="open already"):
        await two.activate(spec(2))
    assert (await told(one, 1, appending("m2"))).tag == wire.OK
    await one.hibernate("alice", 1)
    await two.activate(spec(2))
    for epoch in (1, 2):  # the loser fails every write, under whatever epoch it is asked
        answer = await told(one, epoch, appending("lost"))
        assert isinstance(wire.load_error(answer.data), StaleEpochError)
    assert (await told(two, 2, appending("m3"))).tag == wire.OK
    answer = await told(two, 1, appending("lost"))
    assert isinstance(wire.load_error(answer.data), StaleEpochError)
    await two.hibernate("alice", 2)
    with pytest.raises(StaleEpochError):  # the file knows who came later
        await one.activate(spec(1))
    async with opened(tmp_path / FILE) as talk:
        assert await history(talk) == ["m1", "m2", "m3"]


# 6. The survivor truncates.
APPENDS = """
import asyncio, sys
from pathlib import Path
from tests.conformance.support import opened, said

async def main(path, first):
    async with opened(Path(path)) as talk:
        async def one(number):
            await talk.session.append_message(said(f"m{number}", f"{number} " * 400_000))
            print(number, flush=True)
        for start in range(first, first + 400, 4):
            await asyncio.gather(*(one(number) for number in range(start, start + 4)))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_what_was_acknowledged_before_a_kill_is_whole_elsewhere(tmp_path: Path) -> None:
    path, following = tmp_path / "0" / "talk.sqlite", 0
    path.parent.mkdir()
    for round_ in range(1, 4):
        writing = await asyncio.create_subprocess_exec(
            sys.executable, "-c", APPENDS, str(path), str(following),
            cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert writing.stdout is not None
        acknowledged = [int(await writing.stdout.readline()) for _ in range(3 * round_)]
        os.kill(writing.pid, signal.SIGKILL)  # rows of several pieces are being written
        acknowledged += [int(line) for line in (await writing.stdout.read()).split()]
        await writing.wait()
        elsewhere = tmp_path / str(round_)
        shutil.copytree(path.parent, elsewhere)
        path = elsewhere / "talk.sqlite"
        async with opened(path) as talk:
            stored = {m["id"]: m async for m in talk.session.history()}
            assert list(stored) == [f"m{i}" for i in range(len(stored))]
            assert len(stored) > max(acknowledged)
            for name, message in stored.items():
                number = name.removeprefix("m")
                assert written(message) == written(said(name, f"{number} " * 400_000))
            assert talk.problems() == []
            following = len(stored)


# 7. Duplicate or missing sequence numbers make a log unloadable.
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE cf_agents_session_messages SET seq = 5",
        "UPDATE cf_agents_session_messages SET seq = seq % 3",
        "UPDATE cf_agents_session_messages SET seq = 100 - seq",
        "UPDATE cf_agents_session_messages SET seq = seq * 1000 WHERE seq % 2",
        "UPDATE cf_agents_session_messages SET seq = -seq",
    ],
    ids=["all one", "duplicates", "backwards", "gaps", "negative"],
)
async def test_damaged_sequence_numbers_leave_the_order_to_the_parents(
    tmp_path: Path, damage: str
) -> None:
    async with opened(tmp_path / "a.sqlite") as talk:
        names = await grow(talk, 30)
    shutil.copyfile(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    async with opened(tmp_path / "b.sqlite") as talk:
        talk.storage.sql.exec(damage)
    async with opened(tmp_path / "b.sqlite") as talk:
        assert await history(talk, leaf_id="m29") == names
        assert await history(talk, leaf_id="m29", newest_first=True) == names[::-1]
        assert [hit.id for hit in await talk.session.search("m17")] == ["m17"]
        rows = [row async for row in talk.session.history_rows(after_seq=-(10**6))]
        assert {row.message["id"] for row in rows} == set(names)
        assert (await talk.session.append_message(said("new"), parent_id="m29")).inserted
        assert await history(talk, leaf_id="new") == [*names, "new"]


# 8. A long call while its conversation migrates or hibernates.
@pytest.mark.parametrize("how", ["in time", "too late", "sealed"])
async def test_a_long_call_while_its_conversation_moves_ends_whole_or_not_at_all(
    tmp_path: Path, how: str
) -> None:
    actor = ConversationActor(str(tmp_path), leased)
    await actor.activate(spec(1, "tests.cluster.hosts:Host"))
    held = await told(actor, 1, wire.Part("", wire.CALL, wire.dump_call("hold", (), {})))
    assert held.tag == wire.WAITING
    if how == "sealed":  # a migration, which is given up again
        leaving: Any = asyncio.create_task(actor.seal("alice", 1, 30.0))
    else:
        patience_s = 30.0 if how == "in time" else 0.0
        leaving = asyncio.create_task(actor.hibernate("alice", 1, patience_s=patience_s))
    await asyncio.sleep(0)
    if how != "too late":
        release = wire.Part("", wire.CALL, wire.dump_call("let_go", (), {}))
        assert (await told(actor, 1, release)).tag == wire.OK
    await leaving
    if how == "sealed":
        await actor.unseal("alice", 1)
    (outcome,) = wire.unpack_reply(await actor.collect("alice", 1, held.data.decode(), 5.0))
    if how == "too late":
        assert outcome.tag == wire.CUT  # what a handle turns into the retryable MigratingError
        assert MigratingError.retryable
    else:
        assert wire.load_result(wire.ResultKind.PICKLE, outcome.data) == "released"


# 29. A node that holds only 0-CPU actors is scaled down as idle.
def test_an_actor_holds_a_resource_from_its_start() -> None:
    from router.settings import Settings

    assert "num_cpus" not in actor_options(), "the deployment says how much"
    assert Settings().actor_cpus > 0
    with pytest.raises(ValueError, match="actor_cpus"):
        Settings(actor_cpus=0)


# 30. An error arrives after the call succeeded.
@pytest.mark.parametrize("method", ["append_message", "update_message", "delete_messages"])
async def test_an_answer_that_was_lost_is_asked_for_again_without_harm(
    tmp_path: Path, method: str
) -> None:
    from ray.exceptions import ActorUnavailableError

    actor = ConversationActor(str(tmp_path), leased)
    await actor.activate(spec(1))
    assert (await told(actor, 1, appending("m0"))).tag == wire.OK
    lost = 3

    class Owner:
        """The actor over a network that loses answers."""

        class serve:
            @staticmethod
            def remote(frame: bytes) -> Any:
                return asyncio.ensure_future(deliver(frame))

    async def deliver(frame: bytes) -> bytes:
        nonlocal lost
        answer = await actor.serve(frame)
        if lost:
            lost -= 1
            raise ActorUnavailableError("the answer went with the connection", None)
        return answer

    class Finds(Directory):
        async def resolve(self, name: str, failed: Any) -> Any:
            found = await super().resolve(name, failed)
            return found.__class__(name, 1, found.actor)

    channel = Channel("alice", Finds(Owner()))
    given: Any = {"append_message": said("m1"), "update_message": said("m0", "edited")}
    args = wire.dump_args([given.get(method, ["m0"])], {}, ["x"])
    await channel.call("", method, args)
    assert lost == 0
    await actor.hibernate("alice", 1)
    async with opened(tmp_path / FILE) as talk:
        rows = [row async for row in talk.session.history_rows()]
        expected = {
            "append_message": [said("m0"), said("m1")],
            "update_message": [said("m0", "edited")],
            "delete_messages": [],
        }
        assert [row.message for row in rows] == expected[method]
        assert talk.problems() == []
