"""The bench itself: its arithmetic, its data, and that it runs."""

import json
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from tests.bench import data
from tests.bench.__main__ import ORDER
from tests.bench.measure import Goal, Pair, Result, at_least, at_most, in_turns, middle, table

ROOT = Path(__file__).resolve().parents[2]
CHEAP = ("append-local", "branches", "search", "attachments")


@pytest.mark.parametrize(
    ("goal", "ours", "floor", "met"),
    [
        (at_most(1.3), 13.0, 10.0, True),
        (at_most(1.3), 13.1, 10.0, False),
        (at_least(0.2), 2.0, 10.0, True),
        (at_least(0.2), 1.9, 10.0, False),
        (Goal("+ ≤ 2 s", more_max=2), 3.0, 1.0, True),
        (Goal("+ ≤ 2 s", more_max=2), 3.1, 1.0, False),
        (Goal("≤ 100 ms", ours_max=0.1), 0.1, None, True),
        (Goal("≥ 60 MB/s", ours_min=60e6), 59e6, 600e6, False),
        (Goal(), 1.0, 2.0, None),
        (at_most(1.3), 1.0, None, None),
    ],
)
def test_a_goal(goal: Goal, ours: float, floor: float | None, met: bool | None) -> None:
    assert Result("line", ours, floor, "s", goal).met is met


def test_the_round_of_the_median_ratio_stands_for_all() -> None:
    assert middle([(9.0, 3.0), (2.0, 1.0), (4.0, 1.0)]) == Pair(9.0, 3.0)
    assert middle([(9.0, 3.0), (2.0, 1.0)]) == Pair(2.0, 1.0)
    assert middle([(1.0, 0.0, 5.0)], 2, 0) == Pair(5.0, 1.0)


async def test_work_and_floor_take_turns_after_a_warm_up() -> None:
    seen = []

    async def ours() -> float:
        seen.append("ours")
        return len(seen)

    async def floor() -> float:
        seen.append("floor")
        return len(seen)

    assert await in_turns(2, ours, floor) == [(3, 4), (5, 6)]
    assert seen == ["ours", "floor"] * 3


def test_a_result_as_people_and_programs_see_it() -> None:
    result = Result("append", 0.003, 0.002, "s", at_most(1.6))
    assert result.as_json() == {
        "name": "append",
        "ours": 0.003,
        "floor": 0.002,
        "ratio": 1.5,
        "goal": "≤ 1.6 ×",
        "met": True,
    }
    head, row = table([result]).splitlines()
    assert head.split() == ["name", "ours", "floor", "ratio", "goal"]
    assert " ".join(row.split()) == "append 3.00 ms 2.00 ms 1.50 × ≤ 1.6 × met"


@pytest.mark.parametrize("size", [200, data.MESSAGE_BYTES, 16_000])
def test_messages_have_the_size_asked_for(size: int) -> None:
    supply = data.Messages(size)
    some = supply.many(50)
    assert {len(orjson.dumps(message)) for message in some} == {size}
    assert len({message["id"] for message in some}) == 50


async def test_a_built_file_is_a_sound_conversation(tmp_path: Path) -> None:
    path = tmp_path / "built.sqlite"
    for name in (data.rising_id, data.random_id):
        data.build(path, 120, name=name)
        async with open_object(Conversation, name="built", path=path) as host:
            assert not host.sessions.engine.problems()
            assert len(await host.session.get_history()) == 120


def test_it_runs() -> None:
    """The cheap lines, small. Times are not judged here."""
    command = [sys.executable, "-m", "tests.bench", "--small", "--json", *CHEAP]
    environment = {"PATH": "", "SESSIONS_ACTOR_REFERENCE": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "append-local, reference: skipped, the reference needs node" in done.stderr
    results = json.loads(done.stdout)
    assert {one["name"].split(",")[0] for one in results} >= {*CHEAP, "leaf", "message", "stats"}
    for one in results:
        assert set(one) == {"name", "ours", "floor", "ratio", "goal", "met"}
        assert one["ours"] > 0


def test_every_line_of_the_table_is_there() -> None:
    assert len(ORDER) == len(set(ORDER)) == 21
