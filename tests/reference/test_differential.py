"""The differential run: its own parts without the reference, and a short run with it.

The tests that need the reference run when ``--reference FOLDER`` names a folder in which it is,
or may be, installed; node and npm must be there.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sessions_actor import open_object
from tests.conformance import scenario
from tests.conformance.host import ConformanceObject
from tests.conformance.operations import Conversation, LocalHost
from tests.conformance.scenario import Answer
from tests.reference.client import ReferenceClient, ReferenceConversation
from tests.reference.diff import Run, Unaccounted, run
from tests.reference.kinds import KINDS
from tests.reference.server import ReferenceServer, missing_tool
from tests.reference.steps import RISKS, Episode


# ------------------------------------------------------------------------------ without reference
@pytest.mark.parametrize("risks", [frozenset(), frozenset(RISKS)])
def test_an_episode_follows_from_its_seed(risks: frozenset[str]) -> None:
    first, second, other = (Episode(seed, risks) for seed in ("a", "a", "b"))
    drawn = [first.next() for _ in range(300)]
    assert drawn == [second.next() for _ in range(300)]
    assert drawn != [other.next() for _ in range(300)]


def test_every_operation_and_every_risk_is_drawn() -> None:
    everything = Episode("all", frozenset(RISKS))
    assert len({everything.next().op for _ in range(3_000)}) >= 20
    assert len({kind.name for kind in KINDS}) == len(KINDS)


class Odd:
    """Ours once more, except that one operation answers otherwise."""

    def __init__(self, inner: Conversation, op: str | None) -> None:
        self.inner, self.op = inner, op

    async def call(self, op: str, args: list[Any], session: str) -> Answer:
        """Answer, or misbehave."""
        answer = await self.inner.call(op, args, session)
        return {"ok": "something else"} if op == self.op else answer


@pytest_asyncio.fixture
async def twin(tmp_path: Path) -> AsyncIterator[Conversation]:
    """A conversation of ours that stands where the reference would."""
    path = tmp_path / "twin.sqlite"
    async with open_object(ConformanceObject, name="twin", path=path) as target:
        yield Conversation(LocalHost(target))


@pytest.mark.parametrize("seed", range(4))
async def test_ours_does_not_differ_from_ours(
    twin: Conversation, tmp_path: Path, seed: int
) -> None:
    made = Run(lambda name: Odd(twin, None), seed, tmp_path)
    await made.go(100)
    assert made.steps == 100
    assert not made.kinds


@pytest.mark.parametrize("op", ["getMessage", "getLatestLeaf", "getBranches", "events"])
async def test_a_difference_of_no_known_kind_ends_the_run(
    twin: Conversation, tmp_path: Path, op: str
) -> None:
    made = Run(lambda name: Odd(twin, op), 3, tmp_path)
    with pytest.raises(Unaccounted, match=op) as caught:
        await made.episode(0, 500)
    assert "--seed 3 --episode 0" in str(caught.value)


# --------------------------------------------------------------------------------- with reference
@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve the reference for this module."""
    folder = request.config.getoption("--reference")
    if folder is None:
        pytest.skip("the reference is driven with --reference FOLDER (it is installed there)")
    tool = missing_tool()
    if tool is not None:
        pytest.skip(f"the reference needs {tool}, which is not installed")
    with ReferenceServer(Path(folder)) as server:
        yield server.base


@pytest.mark.parametrize("name", scenario.names())
async def test_a_scenario_says_why_wherever_the_reference_differs(
    reference: str, name: str
) -> None:
    steps = scenario.load(scenario.SCENARIOS / f"{name}.jsonl")
    client = ReferenceClient(reference)
    conversation = ReferenceConversation(client, f"scenario-{name}-{id(client)}")
    mismatches = await scenario.replay(steps, conversation)
    client.close()
    assert {found.step for found in mismatches} <= {
        number for number, step in enumerate(steps, 1) if step.why is not None
    }


async def test_a_differential_run(reference: str, long_run: bool) -> None:
    made = await run(reference, 20_000 if long_run else 600, seed=2)
    print(made.summary())
    assert made.steps >= 600
