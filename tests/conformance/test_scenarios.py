"""Every scenario, replayed on a fresh conversation in process."""

from pathlib import Path

import pytest

from sessions_actor import open_object
from tests.conformance import scenario
from tests.conformance.host import ConformanceObject
from tests.conformance.operations import Conversation, LocalHost


@pytest.mark.asyncio
@pytest.mark.parametrize("name", scenario.names())
async def test_scenario(name: str, tmp_path: Path) -> None:
    steps = scenario.load(scenario.SCENARIOS / f"{name}.jsonl")
    path = tmp_path / "conversation.sqlite"
    async with open_object(ConformanceObject, name=name, path=path) as target:
        mismatches = await scenario.replay(steps, Conversation(LocalHost(target)))
    assert not mismatches, "\n".join(map(str, mismatches))
