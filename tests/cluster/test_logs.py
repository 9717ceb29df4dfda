"""What a deployment logs: an event for each thing that happens, and never what is said.

Everything that a process of the cluster writes lands in the session's log folder: what is searched
there is found wherever it came from, Ray's and asyncio's own words included.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from .conftest import Deploy, message, until


def log_folder() -> Path:
    """Return where the processes of this cluster write."""
    import ray

    node: Any = ray._private.worker._global_node
    return Path(node.get_logs_dir_path())


def events_of(name: str) -> list[dict[str, Any]]:
    """Return the events of a conversation, from all processes, in the order of their times."""
    found = []
    for file in log_folder().glob("worker-*.err"):
        for line in file.read_text(errors="replace").splitlines():
            if line.startswith('{"time"') and name in line:
                event = json.loads(line)
                if event.get("conversation") == name:
                    found.append(event)
    return sorted(found, key=lambda event: str(event["time"]))


def files_with(secret: str) -> list[str]:
    """Return the logs that hold a text."""
    return [
        str(file)
        for file in log_folder().rglob("*")
        if file.is_file() and secret.encode() in file.read_bytes()
    ]


async def test_each_thing_that_happens_is_one_event(
    deploy: Deploy, three_nodes: dict[str, str]
) -> None:
    name = f"alice-{uuid.uuid4().hex}"
    async with deploy(warm_actors=1) as client:
        session = client.get(name).session()
        await session.append_message(message("m1"))
        await client.hibernate(name)
        await session.append_message(message("m2"))
        report = await client.migrate(name, three_nodes["apart"])
        with pytest.raises(AttributeError):
            await client.get(name).call("nothing_of_this_name")
        await client.delete(name)

        def events() -> list[dict[str, Any]]:
            found = events_of(name)
            return found if found and found[-1]["event"] == "conversation.deleted" else []

        found = await until(events, "the events are in the log")
    # On a busy machine the node's agent may come late with its first lease: that is told as well.
    found = [event for event in found if event["event"] not in ("lease.missing", "agent.failed")]
    steps = [event for event in found if event["event"] != "migration.step"]
    assert [event["event"] for event in steps] == [
        "conversation.activated",
        "conversation.hibernated",
        "conversation.activated",
        "migration.ended",
        "call.failed",
        "conversation.deleted",
    ]
    first, slept, woken, moved, failed, _ = steps
    assert (first["kind"], woken["kind"], slept["reason"]) == ("new", "wake", "asked")
    assert first["epoch"] < woken["epoch"] < failed["epoch"] == report.epoch
    assert moved["target_node"] == failed["node"] == three_nodes["apart"]
    assert moved["messages"] == 2
    assert failed["role"] == "actor"
    assert failed["error"] == "builtins.AttributeError"
    assert failed["error_at"].rpartition(":")[0].endswith("hosted.py")
    phases = [event["phase"] for event in found if event["event"] == "migration.step"]
    assert phases[-1] == "switched"
    assert all({"node", "epoch", "role", "level"} <= event.keys() for event in found[:-1])


async def test_what_is_said_is_never_logged(deploy: Deploy, three_nodes: dict[str, str]) -> None:
    plain = uuid.uuid4().hex
    secret = f"sécret{plain}"
    name = f"quoting-{uuid.uuid4().hex}"

    def said(message_id: str) -> Any:
        return message(message_id, f"the {secret} " * 40)

    settings = {
        "object_class": "tests.cluster.hosts:Quoting",
        "log_level": "debug",
        "quota_bytes": 512 * 1024,
    }
    async with deploy(**settings) as client:
        conversation = client.get(name)
        session = conversation.session()
        await session.append_message(said("m1"))
        await session.append_messages([said("m2"), said("m3")])
        await session.update_message(said("m2"))
        await session.upsert_message(said("m4"))
        assert await session.search(secret) != []
        assert [m async for m in session.history()] != []
        await session.add_compaction(f"about {secret}", "m1", "m2")
        for wrong in (
            session.compact(),
            session.search(f'"{secret}', limit=-1),
            session.append_message(message("big", secret * 20_000)),
            session.append_message({"id": "m9", "role": "user", "parts": [{secret: {secret}}]}),
            session.import_message(said("m10"), parent_id=secret, created_at=float("nan")),
            conversation.call("quote", secret),
            conversation.call("quote_keyword", secret),
            conversation.call("quote_sql", secret),
            conversation.call("fail_later", secret),
            conversation.call(secret),
            conversation.call("emit", secret),
        ):
            with contextlib.suppress(Exception):
                await wrong
        await client.migrate(name, three_nodes["apart"])
        await client.hibernate(name)
        await session.delete_messages(["m1"])
        await session.clear_messages()
        await client.delete(name)
        await until(
            lambda: any(e["event"] == "conversation.deleted" for e in events_of(name)),
            "the last event is in the log",
        )
    found = events_of(name)
    assert {"call.failed", "lifecycle.event", "migration.step"} <= {e["event"] for e in found}
    assert {e["error"] for e in found if e["event"] == "call.failed"} >= {
        "QuotaExceededError",
        "builtins.LookupError",
        "tests.cluster.hosts.QuotingError",
    }
    assert files_with(plain) == []
    assert files_with(name) != [], "the search looks at the right files"
