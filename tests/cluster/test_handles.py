"""Handles wherever Python runs: tasks, actors, threads, plain scripts; with and without await."""

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, Deploy, message


async def test_handles_work_inside_ray_tasks_and_actors(deploy: Deploy) -> None:
    import ray

    async with deploy() as client:
        session = client.get("alice").session()

        @ray.remote(num_cpus=0.1)
        def task(session: Any, name: str) -> int:
            async def run() -> int:
                await session.append_message(message(name))
                return len(await session.get_history())

            return asyncio.run(run())

        @ray.remote(num_cpus=0.1)
        class Agent:
            def __init__(self, conversation: Any) -> None:
                self.session = conversation.session()

            async def say(self, name: str) -> bool:
                result = await self.session.append_message(message(name))
                return bool(result.inserted)

        assert await task.remote(session, "from-task") == 1
        agent = Agent.remote(client.get("alice"))
        assert await asyncio.gather(*(agent.say.remote(f"a{i}") for i in range(20))) == [True] * 20
        assert len([m async for m in session.history()]) == 21
        ray.kill(agent)


async def test_the_blocking_client_inside_a_ray_task(deploy: Deploy, tmp_path: Path) -> None:
    import ray

    async with deploy() as client:
        namespace = client._namespace
        root = str(tmp_path / "data")

        @ray.remote(num_cpus=0.1)
        def task() -> Any:
            from router import Settings, connect_sync

            with connect_sync(namespace=namespace, settings=Settings(storage_root=root)) as inner:
                session = inner.get("alice").session()
                session.append_message(message("m1"))
                session.append_messages([message(f"n{i}") for i in range(1000)])
                newest = next(session.history(newest_first=True))
                return newest["id"], [m["id"] for m in session.history()][-2:], inner.list()

        newest, last, names = await task.remote()
        assert (newest, last, names) == ("n999", ["n998", "n999"], ["alice"])

        @ray.remote(num_cpus=0.1)
        def with_handle(conversation: Any) -> list[str]:
            return [m["id"] for m in conversation.session().history()][:2]

        from router.sync import SyncConversation

        blocking = SyncConversation(client.get("alice"))
        assert await with_handle.remote(blocking) == ["m1", "n0"]


async def test_handles_pickle_and_are_shared_by_loops(deploy: Deploy) -> None:
    async with deploy() as client:
        session = pickle.loads(pickle.dumps(client.get("alice").session("s")))
        assert session.session_id == "s"
        await session.append_message(message("here"))

        def in_another_loop() -> int:
            async def run() -> int:
                await session.append_message(message("there"))
                return len(await session.get_history())

            return asyncio.run(run())

        assert await asyncio.to_thread(in_another_loop) == 2
        assert await asyncio.to_thread(in_another_loop) == 2


SCRIPT = """
    import sys
    from router import Settings, connect_sync

    def message(i):
        return {"id": i, "role": "user", "parts": [{"type": "text", "text": "Hello"}]}

    settings = Settings(storage_root=sys.argv[1])
    with connect_sync("local", settings=settings) as conversations:
        alice = conversations.get("alice")
        session = alice.session()
        feed = session.changes()
        assert session.append_message(message("m1")).inserted
        assert next(feed).message == message("m1")
        feed.close()
        session.append_messages([message(f"n{i}") for i in range(600)])
        assert [m["id"] for m in session.history()][:2] == ["m1", "n0"]
        assert sum(len(batch) for batch in session.history_batches(batch_size=7)) == 601
        assert sum(1 for row in session.history_rows()) == 601
        with session.history(newest_first=True) as newest:
            assert next(newest)["id"] == "n599"
        try:
            session.append_message({"id": "", "role": "user", "parts": []})
        except ValueError as error:
            assert "id" in str(error)
        else:
            raise AssertionError("an empty id was taken")
        report = conversations.migrate("alice")
        assert report.messages == 601, report
        assert conversations.verify("alice") == []
        assert conversations.info("alice").epoch == report.epoch
        conversations.get("bob").session().append_message(message("m"))
        assert conversations.list() == ["alice", "bob"]
        assert conversations.delete("bob")
        assert not conversations.delete("bob")
        assert conversations.list() == ["alice"]
    with connect_sync("local", settings=settings) as conversations:
        assert conversations.info("alice").state == "hibernated"
        assert len(conversations.get("alice").session().get_history()) == 601
    print("fine")
"""


def test_a_plain_script_starts_a_cluster_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = str(ROOT)
    marker = str(tmp_path / "data")
    done = subprocess.run(
        [sys.executable, str(script), marker],
        env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("fine")
    assert not (tmp_path / "data" / "deployment.json").exists()


OWN_CLASS = """
    from sessions_actor import DurableObject, Lifecycle, Sessions

    class Conversation(DurableObject):
        def __init__(self, state):
            super().__init__(state)
            self.sessions = Sessions(reserved_metadata_keys=("channel",))
            self.lifecycle = Lifecycle.install(self).use(self.sessions)

        async def shout(self, text):
            return text.upper()
"""
OWN_SCRIPT = """
    import asyncio, sys
    from router import Settings, connect

    async def main():
        settings = Settings(storage_root=sys.argv[1], object_class="myapp:Conversation")
        async with connect("local", settings=settings) as conversations:
            alice = conversations.get("alice")
            assert await alice.call("shout", "hello") == "HELLO"
            message = {"id": "m", "role": "user", "parts": [], "metadata": {"channel": 1, "a": 2}}
            result = await alice.session().append_message(message, source="client")
            assert result.message["metadata"] == {"a": 2}, result
        print("fine")

    asyncio.run(main())
"""


def test_a_class_that_lies_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "myapp.py").write_text(textwrap.dedent(OWN_CLASS))
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(OWN_SCRIPT))
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "data")],
        env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("fine")


async def test_what_does_not_exist_says_so(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        with pytest.raises(AttributeError):
            session.nothing  # noqa: B018
        from router.sync import SyncSession

        with pytest.raises(AttributeError):
            SyncSession(session).nothing  # noqa: B018
