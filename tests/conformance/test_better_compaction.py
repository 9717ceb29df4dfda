"""Better than the reference: what an overlay hides was in its prompt; calls stay with results.

The summariser of these tests returns every tag it can see in its prompt. An overlay's summary thus
names all it stands for, and a message that is hidden without being named was in no prompt.
"""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import create_compact_function
from sessions_actor.records import CompactResult
from tests.conformance.support import Message, Talk, at_once, grow, ids, opened, said

TAG = re.compile(r"<tag-[^>]*>")


def tagged(message_id: str, length: int = 0) -> Message:
    """Make a message whose text names it."""
    return said(message_id, f"<tag-{message_id}> {'x' * length}")


def summarise(prompt: str) -> str:
    """Return every tag of the prompt."""
    return " ".join(dict.fromkeys(TAG.findall(prompt)))


def covered(talk: Talk, view: list[Message], path: list[str], overlays: dict[str, Any]) -> None:
    """Every message of the path is in the view, or named by the summary that stands there."""
    shown = {message["id"] for message in view}
    places = {name: index for index, name in enumerate(path)}
    named = dict.fromkeys(path, "")
    for message in view:
        overlay = overlays.get(message["id"])
        if overlay is not None:
            span = path[places[overlay.from_message_id] : places[overlay.to_message_id] + 1]
            named.update(dict.fromkeys(span, overlay.summary))
    for name in path:
        assert name in shown or f"<tag-{name}>" in named[name], name


async def check_covered(talk: Talk, leaf_id: str | None = None) -> None:
    """Check one path."""
    session = talk.session
    view = await session.get_history(leaf_id=leaf_id)
    path = [row.id for row in await session.get_history_row_stats(leaf_id)]
    overlays = {f"compaction_{one.id}": one for one in await session.get_compactions()}
    covered(talk, view, path, overlays)


# Row: compact() hides messages that were in no prompt (after an earlier overlay, after deletions,
# with two overlays).
@pytest.mark.parametrize("seed", range(30))
async def test_whatever_is_hidden_was_in_a_prompt(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with opened(tmp_path) as talk:
        session = talk.session
        leaves: list[str | None] = [None]
        for step in range(60):
            kind = rng.randrange(12)
            rows = [row.id for row in await session.get_history_row_stats()]
            if kind < 6 or not rows:
                await session.append_message(tagged(f"m{step}", rng.choice([0, 40, 400])))
            elif kind == 6:
                await session.append_message(tagged(f"m{step}"), parent_id=rng.choice(rows))
                leaves.append(f"m{step}")
            elif kind == 7:
                await session.delete_messages(rng.sample(rows, min(len(rows), rng.randint(1, 4))))
            elif kind == 8:
                first, last = sorted(rng.randrange(len(rows)) for _ in range(2))
                await session.add_compaction(
                    " ".join(f"<tag-{name}>" for name in rows[first : last + 1]),
                    rows[first], rows[last],
                )  # fmt: skip
            else:
                keep = rng.choice([1, 1, 60, 200])
                session.on_compaction(
                    create_compact_function(summarize=summarise, keep_recent_tokens=keep)
                )
                await session.compact(rng.choice(leaves))
            for leaf in leaves:
                await check_covered(talk, leaf)


@pytest.mark.parametrize("rounds", [2, 3, 7])
async def test_compacting_again_and_again_leaves_no_gap(tmp_path: Path, rounds: int) -> None:
    prompts: list[str] = []

    def noting(prompt: str) -> str:
        prompts.append(prompt)
        return summarise(prompt)

    async with opened(tmp_path) as talk:
        session = talk.session
        session.on_compaction(create_compact_function(summarize=noting, keep_recent_tokens=1))
        for turn in range(rounds):
            await session.append_messages([tagged(f"t{turn}m{i}") for i in range(6)])
            assert await session.compact() is not None
            await check_covered(talk)
            view = await session.get_history()
            assert len([m for m in view if m["id"].startswith("compaction_")]) == 1
        new = [TAG.findall(prompt.split("NEW TURNS")[-1]) for prompt in prompts]
        told = [tag for tags in new for tag in tags]
        assert len(told) == len(set(told)), "each message is told once, then as a summary"


@pytest.mark.parametrize("deleted", [["m3"], ["m6"], ["m3", "m4"], ["m3", "m6"], ["m2"], ["m7"]])
async def test_compacting_after_a_deletion(tmp_path: Path, deleted: list[str]) -> None:
    async with opened(tmp_path) as talk:
        session = talk.session
        session.on_compaction(create_compact_function(summarize=summarise, keep_recent_tokens=1))
        await session.append_messages([tagged(f"m{i}") for i in range(9)])
        assert await session.compact() is not None
        await session.delete_messages(deleted)
        await check_covered(talk)
        await session.append_messages([tagged(f"n{i}") for i in range(5)])
        await session.compact()
        await check_covered(talk)


@pytest.mark.parametrize("spans", [[(3, 4), (6, 7)], [(6, 7), (3, 4)], [(0, 1), (5, 6)], [(1, 8)]])
async def test_compacting_over_several_overlays(
    tmp_path: Path, spans: list[tuple[int, int]]
) -> None:
    prompts: list[str] = []

    def noting(prompt: str) -> str:
        prompts.append(prompt)
        return summarise(prompt)

    async with opened(tmp_path) as talk:
        session = talk.session
        await session.append_messages([tagged(f"m{i}") for i in range(14)])
        for first, last in spans:
            text = " ".join(f"<tag-m{i}>" for i in range(first, last + 1))
            await session.add_compaction(text, f"m{first}", f"m{last}")
        session.on_compaction(create_compact_function(summarize=noting, keep_recent_tokens=1))
        result = await session.compact()
        assert result is not None
        first = min(first for first, _ in spans)
        assert result.from_message_id == f"m{min(first, 3)}"
        await check_covered(talk)
        assert len(prompts) == 1


# Row: stores ranges that never apply and calls the model again on every append.
@pytest.mark.parametrize(
    ("start", "end"),
    [("m4", "m2"), ("nope", "nope"), ("m2", "nope"), ("nope", "m3"), ("x1", "x1"), ("", "")],
)
async def test_a_result_that_would_hide_nothing_is_refused(
    tmp_path: Path, start: str, end: str
) -> None:
    async with opened(tmp_path) as talk:
        session = talk.session
        await grow(talk, 8)
        await session.append_message(said("x1"), parent_id="m1")
        session.on_compaction(lambda messages: CompactResult("S", start, end))
        for _ in range(3):
            assert await session.compact("m7") is None
        assert await session.get_compactions() == []
        assert [event.type for event in talk.events if event.type == "compact"] == []


async def test_a_range_that_is_hidden_already_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as talk:
        session = talk.session
        await grow(talk, 8)
        overlay = await session.add_compaction("S", "m2", "m5")
        for start, end in (("m3", "m4"), ("m2", "m5"), (f"compaction_{overlay.id}",) * 2):
            made = CompactResult("T", start, end)
            session.on_compaction(lambda messages, made=made: made)  # type: ignore[misc]
            assert await session.compact() is None
        assert [one.summary for one in await session.get_compactions()] == ["S"]


async def test_the_model_is_not_asked_again_before_there_is_something_new(tmp_path: Path) -> None:
    asked = []

    def long_summary(prompt: str) -> str:
        asked.append(prompt)
        return "s" * 4_000  # the summary alone is above the threshold

    async with opened(tmp_path) as talk:
        session = talk.session
        session.on_compaction(create_compact_function(summarize=long_summary, keep_recent_tokens=1))
        await grow(talk, 6)
        assert await session.compact() is not None
        for _ in range(5):
            assert await session.compact() is None
        assert len(asked) == 1
        session.compact_after(100)
        for i in range(4):
            await session.append_message(said("m2"))  # known: nothing new
            await session.update_message(said("m1", f"changed {i}"))
        assert len(asked) == 1


@pytest.mark.parametrize("outcome", ["", "  \n", None, "raise"])
async def test_a_summariser_that_fails_is_not_asked_without_end(
    tmp_path: Path, outcome: str | None
) -> None:
    asked: list[int] = []

    def failing(prompt: str) -> Any:
        asked.append(len(prompt))
        if outcome == "raise":
            raise RuntimeError("the model is away")
        return outcome

    async with opened(tmp_path) as talk:
        session = talk.session
        session.on_compaction(create_compact_function(summarize=failing, keep_recent_tokens=50))
        session.compact_after(60)
        for i in range(50):
            result = await session.append_message(said(f"m{i}", "a text of some length"))
            assert result.inserted
        assert len(await session.get_history()) == 50
        assert await session.get_compactions() == []
        assert len(asked) <= 50
        if outcome == "raise":
            assert len(talk.reported("session:error")) == len(asked) > 0


# Row: a call is parted from results that stand in other messages.
def call(*names: str) -> dict[str, Any]:
    """Make an assistant's tool calls."""
    return {"role": "assistant", "parts": [
        {"type": "tool-get", "toolCallId": name, "state": "input-available", "input": {"q": name}}
        for name in names
    ]}  # fmt: skip


def result_of(name: str, role: str = "tool", kind: str = "tool-get") -> dict[str, Any]:
    """Make the result of a tool call."""
    return {"role": role, "parts": [{"type": kind, "toolCallId": name, "output": f"result {name}"}]}


def filler() -> dict[str, Any]:
    """Make a message without calls."""
    return {"role": "user", "parts": [{"type": "text", "text": "and so on"}]}


async def assert_together(talk: Talk, messages: list[Message]) -> bool:
    """Compact; messages of one call are hidden together or not at all. Says if any were hidden."""
    session = talk.session
    await session.append_messages(messages)
    session.on_compaction(create_compact_function(summarize=lambda p: "S", keep_recent_tokens=1))
    result = await session.compact()
    shown = set(ids(await session.get_history()))
    calls: dict[str, list[bool]] = {}
    for message in messages:
        for part in message["parts"]:
            if "toolCallId" in part:
                calls.setdefault(part["toolCallId"], []).append(message["id"] in shown)
    assert all(len(set(visible)) == 1 for visible in calls.values()), calls
    return result is not None


@pytest.mark.parametrize("seed", range(40))
async def test_calls_and_results_are_never_parted(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bodies: list[dict[str, Any]] = []
    waiting: list[str] = []
    for i in range(rng.randint(8, 24)):
        kind = rng.random()
        if kind < 0.25:
            names = [f"c{i}-{j}" for j in range(rng.randint(1, 3))]
            waiting += names
            bodies.append(call(*names) | {"role": rng.choice(["assistant", "user", "tool"])})
        elif kind < 0.55 and waiting:
            name = waiting.pop(rng.randrange(len(waiting)))
            role, part = (
                rng.choice(["tool", "assistant", "user"]),
                rng.choice(["tool-get", "dynamic-tool"]),
            )
            bodies.append(result_of(name, role, part))
        else:
            bodies.append(filler())
    async with opened(tmp_path) as talk:
        await assert_together(talk, [{"id": f"m{i}", **body} for i, body in enumerate(bodies)])


@pytest.mark.parametrize("gap", [0, 1, 3, 6])
@pytest.mark.parametrize("place", ["head", "tail"])
async def test_a_result_far_from_its_call_moves_the_boundary(
    tmp_path: Path, gap: int, place: str
) -> None:
    pair = [call("1"), *[filler() for _ in range(gap)], result_of("1")]
    around = [filler() for _ in range(6)]
    bodies = [filler(), filler(), *pair, *around] if place == "head" else [
        *around, filler(), filler(), *pair, filler()]  # fmt: skip
    async with opened(tmp_path) as talk:
        hidden = await assert_together(talk, [{"id": f"m{i}", **b} for i, b in enumerate(bodies)])
        assert hidden


async def test_parallel_calls_one_of_which_has_no_result(tmp_path: Path) -> None:
    bodies = [*[filler() for _ in range(5)], call("1", "2", "3"), result_of("3"), filler(),
              result_of("1"), filler()]  # fmt: skip
    async with opened(tmp_path) as talk:
        assert await assert_together(talk, [{"id": f"m{i}", **b} for i, b in enumerate(bodies)])
        assert "m5" in ids(await talk.session.get_history())


# Row: five appends at once over the threshold call the summariser five times.
@pytest.mark.parametrize("count", [2, 5, 20])
async def test_one_compaction_at_a_time(tmp_path: Path, count: int) -> None:
    running = most = asked = 0
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(prompt: str) -> str:
        nonlocal running, most, asked
        running, asked = running + 1, asked + 1
        most = max(most, running)
        started.set()
        await release.wait()
        running -= 1
        return "S"

    async with opened(tmp_path) as talk:
        session = talk.session
        await grow(talk, 10)
        session.on_compaction(create_compact_function(summarize=slow, keep_recent_tokens=1))
        session.compact_after(20)
        appends = asyncio.create_task(
            at_once(*(session.append_message(said(f"n{i}")) for i in range(count)))
        )
        await started.wait()
        other = talk.sessions.session("other")
        assert (await other.append_message(said("free"))).inserted, "others do not wait"
        assert (await session.append_message(said("late"))).inserted
        release.set()
        assert all(result.inserted for result in await appends)
        assert (most, asked) == (1, 1)
        assert len(await session.get_compactions()) == 1


async def test_explicit_compactions_wait_for_each_other(tmp_path: Path) -> None:
    running = most = 0

    async def slow(prompt: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "S"

    async with opened(tmp_path) as talk:
        await grow(talk, 10)
        talk.session.on_compaction(create_compact_function(summarize=slow, keep_recent_tokens=1))
        results = await at_once(*(talk.session.compact() for _ in range(5)))
        assert most == 1
        assert [result is not None for result in results].count(True) == 1


# After the summariser the world has moved: what it made is looked at again.
@pytest.mark.parametrize("meanwhile", ["append", "delete end", "delete start", "clear", "branch"])
async def test_the_tree_may_change_while_the_summariser_runs(
    tmp_path: Path, meanwhile: str
) -> None:
    async with opened(tmp_path) as talk:
        session = talk.session
        await session.append_messages([tagged(f"m{i}") for i in range(10)])

        async def slow(prompt: str) -> str:
            if meanwhile == "append":
                await session.append_message(tagged("new"))
            elif meanwhile == "delete end":
                await session.delete_messages(["m7"])
            elif meanwhile == "delete start":
                await session.delete_messages(["m3"])
            elif meanwhile == "clear":
                await session.clear_messages()
            else:
                await session.append_message(tagged("new"), parent_id="m4")
            return summarise(prompt)

        session.on_compaction(create_compact_function(summarize=slow, keep_recent_tokens=1))
        result = await session.compact()
        assert (result is None) is (meanwhile in ("delete end", "delete start", "clear"))
        assert len(await session.get_compactions()) == (result is not None)
        for leaf in (None, "m9"):
            await check_covered(talk, leaf)
        assert talk.problems() == []
