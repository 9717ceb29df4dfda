"""Every scenario, replayed through a handle: a deployment of one's own class on a Ray cluster.

One deployment serves the whole module. It joins the cluster this process is in, if another test
module brought it into one, and otherwise starts a private one that ends with the module.
"""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.conformance import scenario
from tests.conformance.operations import Conversation

pytest.importorskip("ray", reason="the remote scenarios need Ray")

ROOT = Path(__file__).resolve().parents[2]
OBJECT_CLASS = "tests.conformance.host:ConformanceObject"


class RemoteHost:
    """A :class:`ConformanceObject` behind a conversation's handle."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def session(self, session_id: str) -> Any:
        """Return the SessionHandle of that id."""
        return self.handle.session(session_id)

    async def call(self, method: str, *args: Any) -> Any:
        """Call a public method of the object's class."""
        return await self.handle.call(method, *args)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """Connect to a deployment of our class."""
    import ray

    from router import Settings, connect

    # The workers import the class from here.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        chosen = Settings(
            storage_root=tmp_path_factory.mktemp("conformance"),
            object_class=OBJECT_CLASS,
            warm_actors=1,
            idle_timeout_s=3600.0,
        )
        address = None if ray.is_initialized() else "local"
        namespace = f"conformance-{uuid.uuid4().hex}"
        async with connect(address, namespace=namespace, settings=chosen) as connected:
            yield connected


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", scenario.names())
async def test_scenario_through_a_handle(name: str, client: Any) -> None:
    steps = scenario.load(scenario.SCENARIOS / f"{name}.jsonl")
    conversation = Conversation(RemoteHost(client.get(name)))
    mismatches = await scenario.replay(steps, conversation)
    await client.delete(name)
    assert not mismatches, "\n".join(map(str, mismatches))
