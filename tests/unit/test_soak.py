"""The judgement of a soak, on histories that are wrong on purpose."""

import asyncio
import itertools
import random
from typing import Any

import pytest

from tests.fault.writers import Ledger, Writer, compare
from tests.soak.__main__ import report
from tests.soak.faults import KINDS, Faults
from tests.soak.run import Plan, Verdict

from .fake_cluster import until


class Written:
    """A writer that was told these ids are stored."""

    def __init__(self, prefix: str, *numbers: int) -> None:
        self.prefix = prefix
        self.acknowledged = [f"{prefix}{number}" for number in numbers]


A, B = Written("a-", 0, 1, 2), Written("b-", 0, 1)
RIGHT = ["a-0", "b-0", "a-1", "a-2", "b-1"]


@pytest.mark.parametrize(
    ("stored", "wrong"),
    [
        (RIGHT, {}),
        ([*RIGHT, "a-3"], {}),  # stored, and the answer was lost
        (["a-0", "b-0", "a-2", "b-1"], {"lost": ["a-1"]}),
        ([], {"lost": ["a-0", "a-1", "a-2", "b-0", "b-1"]}),
        ([*RIGHT, "a-1"], {"twice": ["a-1"], "order": ["a-2"]}),
        (["a-0", "b-0", "a-2", "a-1", "b-1"], {"order": ["a-2"]}),
        ([*RIGHT, "zombie"], {"foreign": ["zombie"]}),
    ],
)
def test_a_history_is_held_against_what_was_acknowledged(
    stored: list[str], wrong: dict[str, list[str]]
) -> None:
    found = compare(stored, [A, B])  # type: ignore[list-item]
    assert set(found) == set(wrong)
    for kind in set(wrong) - {"order"}:
        assert found[kind] == wrong[kind]


async def test_a_writer_asks_again_under_the_same_ids_and_measures_its_wait() -> None:
    stored: list[str] = []
    failing = itertools.cycle([True, True, False])

    class Session:
        async def append_message(self, message: Any) -> None:
            if next(failing):
                raise TimeoutError("nobody answers")
            stored.append(message["id"])

        async def append_messages(self, messages: Any) -> None:
            for message in messages:
                await self.append_message(message)

    ledger = Ledger()
    writer = Writer(Session(), "w-", ledger)
    await until(lambda: len(stored) >= 2)
    assert await writer.stop()
    assert stored == writer.acknowledged == [f"w-{i}" for i in range(len(stored))]
    assert ledger.errors == {"TimeoutError: nobody answers": 2 * len(stored)}
    assert ledger.acknowledged == len(stored)
    assert ledger.worst_s > 0
    assert writer.waits_s == 0


async def test_a_writer_that_waits_for_ever_is_found() -> None:
    class Session:
        async def append_message(self, message: Any) -> None:
            await asyncio.Event().wait()

        append_messages = append_message

    writer = Writer(Session(), "w-", Ledger(), chance=random.Random(1))
    await until(lambda: writer.waits_s > 0)
    assert not await writer.stop(within_s=0.05)


def test_a_verdict_is_told_in_one_line_and_spoils_the_exit_code() -> None:
    plan = Plan(seconds=60, seed=5, kills_per_minute=10)
    assert Verdict().is_clean
    bad = Verdict(wrong={"lost": 2}, details=["lost: c01: 2, first ['a']"])
    assert not bad.is_clean
    assert "lost: 2, twice: 0, order: 0" in report(plan, bad)
    assert "seed 5" in report(plan, bad)


def test_every_kind_of_process_is_killed_and_frozen() -> None:
    names = {name for name, kind in KINDS.items() if kind.weight > 0}
    for what in ("actor", "router", "agent", "raylet", "node"):
        assert {f"kill {what}", f"freeze {what}"} <= names
    assert all(kind.kills == name.startswith("kill") for name, kind in KINDS.items())


async def test_at_the_end_work_is_waited_for_while_some_of_it_ends() -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    faults = Faults(
        None, [], [], below=0, chance=random.Random(1), longest_freeze_s=1, say=told.append
    )

    ends = [asyncio.Event() for _ in range(5)]
    work = [asyncio.create_task(end.wait()) for end in ends]
    for end, before in zip(ends[1:], work[:-1], strict=True):
        before.add_done_callback(lambda _, end=end: loop.call_later(0.4, end.set))  # type: ignore[misc]
    hanging = asyncio.create_task(asyncio.Event().wait(), name="migrate")
    faults._tasks.update([*work, hanging])  # type: ignore[arg-type]
    ends[0].set()
    assert await faults.calm(within_s=1.5) == 1, "work of 1.6 s ends; what never does is told"
    assert told == ["stuck: migrate"]
    assert all(one.done() and not one.cancelled() for one in work)
