"""One conversation over a real cluster: calls, results, errors, streams."""

import asyncio
import os
import pickle
from typing import Any

import pytest

from sessions_actor.errors import QuotaExceededError, RemoteCallError

from .conftest import Deploy, message, until

HOST = "tests.cluster.hosts:Host"


async def test_append_read_and_stream(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        first = message("m1")
        result = await session.append_message(first)
        assert result.inserted
        assert result.message is first
        again = await session.append_message(message("m1", "other"))
        assert not again.inserted
        assert again.message == first
        results = await session.append_messages([message(f"n{i}") for i in range(5)])
        assert [r.inserted for r in results] == [True] * 5
        branch = await session.append_message(message("b"), parent_id="m1")
        assert branch.inserted
        assert [m["id"] for m in await session.get_branches("m1")] == ["n0", "b"]
        assert [m["id"] async for m in session.history(leaf_id="n4")] == [
            "m1", "n0", "n1", "n2", "n3", "n4",
        ]  # fmt: skip
        assert [m["id"] async for m in session.history(newest_first=True)] == ["b", "m1"]
        assert (await session.get_latest_leaf())["id"] == "b"
        batches = [
            [m["id"] for m in batch]
            async for batch in session.history_batches(batch_size=4, leaf_id="n4")
        ]
        assert batches == [["m1", "n0", "n1", "n2"], ["n3", "n4"]]
        recent = await session.get_recent_history(1, leaf_id="n4")
        assert [m["id"] for m in recent.messages] == ["n4"]
        assert recent.truncated
        assert recent.total_content_bytes > 100
        everything = await session.get_recent_history(float("inf"), leaf_id="n4")
        assert len(everything.messages) == 6
        assert not everything.truncated
        rows = [row async for row in session.history_rows()]
        assert [(r.message["id"], r.parent_id) for r in rows][:3] == [
            ("m1", None), ("n0", "m1"), ("n1", "n0"),
        ]  # fmt: skip
        assert [r.seq for r in rows] == sorted(r.seq for r in rows)
        assert [r.message["id"] async for r in session.history_rows(after_seq=rows[-2].seq)] == [
            "b"
        ]
        stats = await session.get_history_row_stats("n4")
        assert [s.id for s in stats][:2] == ["m1", "n0"]
        assert stats[0].bytes > 0
        assert [hit.id for hit in await session.search("Hello", limit=2)]
        assert await session.get_message("none") is None
        assert [m async for m in session.history(leaf_id="none")] == []
        await session.delete_messages(["n1", "nowhere"])
        assert [m["id"] for m in await session.get_history(leaf_id="n4")] == [
            "m1", "n0", "n2", "n3", "n4",
        ]  # fmt: skip
        overlay = await session.add_compaction("sum", "n0", "n3")
        assert (await session.get_compactions()) == [overlay]
        assert [m["id"] for m in await session.get_history(leaf_id="n4")] == [
            "m1", f"compaction_{overlay.id}", "n4",
        ]  # fmt: skip
        changed = message("b", "changed")
        assert await session.update_message(changed) is changed
        assert await session.update_message(message("nobody")) is None
        assert not (await session.upsert_message(message("b", "again"))).inserted
        assert (await session.get_message("b"))["parts"][0]["text"] == "again"
        drafts = client.get("alice").session("drafts")
        await drafts.import_message(message("d1"), parent_id=None, created_at=5)
        assert [row.created_at async for row in drafts.history_rows()] == [5]
        assert await drafts.import_messages(rows) == len(rows)
        assert sorted(await client.get("alice").session_ids()) == ["", "drafts"]
        await session.clear_messages()
        assert await session.get_history() == []
        assert await client.get("alice").verify() == []


async def test_any_name_works(deploy: Deploy) -> None:
    names = ["a/b/../c", "nul\0inside", "👩🏽‍🚀", "x" * 1024, " .", "-n"]
    async with deploy() as client:
        for name in names:
            await client.get(name).session().append_message(message(f"of {name[:9]}"))
        assert await client.list() == sorted(names)
        for name in names:
            assert (await client.info(name)).name == name
            history = await client.get(name).session().get_history()
            assert [one["id"] for one in history] == [f"of {name[:9]}"]


async def test_bad_names_are_refused_at_once(deploy: Deploy) -> None:
    async with deploy() as client:
        for name in ("", "x" * 1025, "\ud83d", 5, None):
            with pytest.raises(ValueError, match="name"):
                client.get(name)
        assert await client.list() == []


async def test_odd_messages_come_back_as_they_were(deploy: Deploy) -> None:
    deep: Any = "bottom"
    for _ in range(5000):
        deep = [deep]
    odd = [
        message("surrogate", "half \ud83d an emoji"),
        {**message("numbers"), "big": 2**80, "small": -(10**40), "float": 1e300},
        {**message("deep"), "deep": deep},
        message("long", "東京" * 1_500_000),
        {**message("picture"), "parts": [{"type": "file", "mediaType": "image/png",
         "url": "data:image/png;base64," + "iVBORw0KGgo=" * 1}]},
    ]  # fmt: skip
    async with deploy() as client:
        session = client.get("odd").session()
        for one in odd:
            assert (await session.append_message(one)).inserted
        await client.hibernate("odd")
        for one in odd:
            back = await session.get_message(one["id"])
            assert list(back) == list(one)
            if one["id"] != "deep":  # comparing it recurses
                assert back == one
        assert len([m async for m in session.history()]) == len(odd)


async def test_errors_are_those_of_the_session(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("errors").session()
        with pytest.raises(ValueError, match="parts"):
            await session.append_message({"id": "a", "role": "user"})
        with pytest.raises(TypeError, match=r"message\.parts\[0\]\.n: float nan"):
            await session.append_message(
                {"id": "a", "role": "user", "parts": [{"type": "x", "n": float("nan")}]}
            )
        with pytest.raises(ValueError, match="created_at"):
            await session.import_message(message("a"), parent_id=None, created_at=float("nan"))
        with pytest.raises(RuntimeError, match="compaction"):
            await session.compact()
        with pytest.raises(TypeError):
            await session.append_messages("text")
        assert await session.get_history() == []
        with pytest.raises(ValueError, match="parts"):
            await session.append_messages([message("ok"), {"id": "b", "role": "user"}])
        assert await session.get_history() == []


async def test_parts_of_one_frame_have_their_own_outcomes(deploy: Deploy) -> None:
    async with deploy() as client:
        session = client.get("frame").session()
        await session.append_message(message("root"))
        done = await asyncio.gather(
            *(session.append_message(message(f"m{i}")) for i in range(200)),
            session.update_message(message("m50", "changed")),
            session.import_message(message("bad"), parent_id="bad", created_at=1),
            return_exceptions=True,
        )
        assert all(result.inserted for result in done[:200])
        assert isinstance(done[201], ValueError)
        path = [m["id"] for m in await session.get_history()]
        assert path == ["root", *(f"m{i}" for i in range(200))]
        assert (await session.get_message("m50"))["parts"][0]["text"] == "changed"


async def test_own_methods(deploy: Deploy) -> None:
    async with deploy(object_class=HOST) as client:
        alice = client.get("alice")
        assert await alice.call("pid") != os.getpid()
        assert await alice.call("count", by=5) == 5
        assert await alice.call("count") == 6
        with pytest.raises(LookupError, match="nothing is called x"):
            await alice.call("fail", "x")
        with pytest.raises(RemoteCallError, match="KeywordOnlyError: code 7"):
            await alice.call("fail", "keyword")
        for hidden in ("_hidden", "on_start", "nothing", "session", "__init__"):
            with pytest.raises(AttributeError, match="no public async method"):
                await alice.call(hidden)
        with pytest.raises(TypeError):
            await alice.call("count", 1, 2, 3)
        held = asyncio.create_task(alice.call("hold"))
        await alice.session().append_message(message("meanwhile"))
        await alice.call("let_go")
        assert await held == "released"


async def test_quota(deploy: Deploy) -> None:
    async with deploy(quota_bytes=1_000_000) as client:
        session = client.get("small").session()
        stored: list[str] = []

        async def fill() -> None:
            for i in range(100):
                await session.append_message(message(f"m{i}", "x" * 50_000))
                stored.append(f"m{i}")

        with pytest.raises(QuotaExceededError) as refused:
            await fill()
        assert 0 < refused.value.used_bytes <= refused.value.limit_bytes == 1_000_000
        assert pickle.loads(pickle.dumps(refused.value)).limit_bytes == 1_000_000
        assert [m["id"] for m in await session.get_history()] == stored
        await session.delete_messages([f"m{i}" for i in range(5)])
        assert (await session.append_message(message("fits", "x" * 50_000))).inserted
        await client.set_quota("small", 2_000_000)
        assert (await client.info("small")).quota_bytes == 2_000_000
        for i in range(10):
            await session.append_message(message(f"more{i}", "x" * 50_000))
        with pytest.raises(ValueError, match="quota_bytes"):
            await client.set_quota("small", 1000)


async def test_compaction_by_the_hosted_class(deploy: Deploy) -> None:
    async with deploy(object_class="tests.cluster.hosts:Summarising") as client:
        alice = client.get("alice")
        session = alice.session()
        feed = session.changes()
        for i in range(8):
            await session.append_message(message(f"m{i}", "some words " * 5))
        kinds = []
        async for event in feed:
            kinds.append(event.type)
            if event.type == "compact":
                break
        assert kinds[:-1] == ["append"] * (len(kinds) - 1)
        assert (await session.get_compactions())[0].summary == "so far"
        await feed.aclose()


async def test_a_slow_summary_holds_up_nobody(deploy: Deploy) -> None:
    async with deploy(object_class="tests.cluster.hosts:SlowSummary") as client:
        alice = client.get("alice")
        session = alice.session()
        for i in range(3):
            await session.append_message(message(f"m{i}"))
        slow = asyncio.create_task(session.append_message(message("trigger", "words " * 40)))
        await until(lambda: alice.call("times_asked"), "the summariser is called")
        after = [await session.append_message(message(f"n{i}")) for i in range(10)]
        assert all(result.inserted for result in after)
        assert not slow.done()
        await alice.call("let_go")
        assert (await slow).inserted
        assert [c.summary for c in await session.get_compactions()] == ["so far"]
