"""Other stores of conversations, on the same machine with the same text. Optional packages."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path
from typing import Any

from . import data
from .bench import Bench, line
from .data import Messages
from .measure import Goal, Pair, at_least, in_turns, middle, now, rate
from .writes import IN_FLIGHT

TURNS = 200


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@line("sdk")
async def sdk(bench: Bench) -> None:
    """Compare appends with the OpenAI Agents SDK's, turns with LangGraph's."""
    if _installed("agents.memory"):
        await _openai(bench)
    else:
        bench.skip("sdk, OpenAI Agents", "openai-agents is not installed")
    if _installed("langgraph.checkpoint.sqlite"):
        await _langgraph(bench)
    else:
        bench.skip("sdk, LangGraph", "langgraph and langgraph-checkpoint-sqlite are not installed")


async def _openai(bench: Bench) -> None:
    stored = bench.size(20_000, 500)
    await _openai_appends(bench, "sdk, appends to OpenAI's SQLiteSession", bench.new_file(), 0)
    full = bench.copy_of(bench.built(stored, name=data.random_id))
    await _openai_appends(bench, f"sdk, OpenAI, {stored:,} stored", full, stored)


async def _openai_appends(bench: Bench, name: str, own: Path, stored: int) -> None:
    from agents.memory import SQLiteSession

    peer = SQLiteSession("bench", str(bench.new_file()))
    choice, count = data.texts(data.MESSAGE_BYTES), bench.size(1_000, 50)
    supply = Messages()

    async def theirs(number: int) -> None:
        await peer.add_items([{"role": "user", "content": choice[number % len(choice)]}])

    if stored:
        texts = (choice[number % len(choice)] for number in range(stored))
        await peer.add_items([{"role": "user", "content": text} for text in texts])
    async with bench.opened(own) as session:

        async def ours(_: int) -> None:
            await session.append_message(supply.one())

        rounds = await in_turns(
            bench.repeat,
            *(lambda: rate(ours, count, IN_FLIGHT), lambda: rate(theirs, count, IN_FLIGHT)),
            *(lambda: rate(ours, count, 1), lambda: rate(theirs, count, 1)),
        )
    bench.add(f"{name}, {IN_FLIGHT} at once", middle(rounds), "/s", at_least(5))
    bench.add(f"{name}, one at a time", middle(rounds, 2, 3), "/s")
    peer.close()


async def _langgraph(bench: Bench) -> None:
    turns = bench.size(TURNS, 20)
    path = bench.new_file()
    theirs = _langgraph_turns(path, turns)
    their_bytes = _bytes(path)
    own, supply = bench.new_file(), Messages()
    ours = []
    async with bench.opened(own) as session:
        for _ in range(turns):
            began = now()
            await session.append_message(supply.one())
            await session.append_message(supply.one())
            ours.append(now() - began)
    sizes = Pair(_bytes(own), their_bytes)
    goal = Goal("≤ 1/50", ratio_max=1 / 50) if not bench.small else Goal("≤ 1/50, at 200")
    bench.add(f"sdk, file after {turns} turns, to LangGraph's SqliteSaver", sizes, "B", goal)
    tenth = max(1, turns // 10)
    for name, times, flat in (
        ("ours", ours, Goal("≤ 1.2 ×", ratio_max=1.2)),
        ("LangGraph's", theirs, Goal()),
    ):
        ends = Pair(statistics.median(times[-tenth:]), statistics.median(times[tenth : 2 * tenth]))
        bench.add(f"sdk, {name} last turns, to its first", ends, "s", flat)
    turn = Pair(statistics.median(ours), statistics.median(theirs))
    bench.add("sdk, turn, to LangGraph's", turn, "s")


def _langgraph_turns(path: Path, turns: int) -> list[float]:
    """Hold a conversation with a graph that answers at once; returns the seconds of each turn."""
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, MessagesState, StateGraph

    supply = Messages()

    def text() -> str:
        found: str = supply.one()["parts"][0]["text"]
        return found

    def answer(state: Any) -> Any:
        return {"messages": [("ai", text())]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    times = []
    with SqliteSaver.from_conn_string(str(path)) as saver:
        agent = graph.compile(checkpointer=saver)
        where = {"configurable": {"thread_id": "bench"}}
        for _ in range(turns):
            began = now()
            agent.invoke({"messages": [("user", text())]}, where)
            times.append(now() - began)
    return times


def _bytes(path: Path) -> float:
    """Return the size of a database, its log included."""
    files = [path, path.with_name(path.name + "-wal")]
    return float(sum(file.stat().st_size for file in files if file.exists()))
