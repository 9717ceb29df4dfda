"""How a line of the table is measured: in turns with its floor, and what it should reach.

Work and floor run alternately (ABAB), because a machine's speed drifts; each round gives one
ratio, and the round whose ratio is the median stands for the run. Figures are seconds, things per
second, bytes or bytes per second, always in the base unit.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

Work = Callable[[], Awaitable[float]]
"""One round: does the work and returns its figure."""

Call = Callable[[int], Awaitable[object]]
"""One call, given its number."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a line should reach; without a bound it is reported only.

    Args:
        ratio_max, ratio_min: of ours to the floor.
        more_max: how far ours may lie above the floor.
        ours_max, ours_min: of ours alone.
    """

    text: str = "report"
    ratio_max: float | None = None
    ratio_min: float | None = None
    more_max: float | None = None
    ours_max: float | None = None
    ours_min: float | None = None

    def met(self, ours: float, floor: float | None) -> bool | None:
        """Say whether the bounds hold; None when there are none."""
        held = []
        if self.ours_max is not None:
            held.append(ours <= self.ours_max)
        if self.ours_min is not None:
            held.append(ours >= self.ours_min)
        if floor is not None:
            if self.ratio_max is not None:
                held.append(ours <= self.ratio_max * floor)
            if self.ratio_min is not None:
                held.append(ours >= self.ratio_min * floor)
            if self.more_max is not None:
                held.append(ours - floor <= self.more_max)
        return all(held) if held else None


REPORT = Goal()

_clock = time.perf_counter


def now() -> float:
    """Return the seconds that figures are made of."""
    return _clock()


def counts_cpu() -> bool:
    """Whether `count_cpu` was called."""
    return _clock is time.process_time


def count_cpu() -> None:
    """Let figures be this process's CPU time: what waits for disks and other programs is left out.

    For lines of one process, on a machine that others use meanwhile.
    """
    global _clock
    _clock = time.process_time


def at_most(ratio: float) -> Goal:
    """Set the most that a time or a size may be of its floor."""
    return Goal(f"≤ {ratio:g} ×", ratio_max=ratio)


def at_least(ratio: float) -> Goal:
    """Set the least that a rate must be of its floor."""
    return Goal(f"≥ {ratio:g} ×", ratio_min=ratio)


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. `unit` is that of both figures: s, /s, B or B/s."""

    name: str
    ours: float
    floor: float | None
    unit: str
    goal: Goal = REPORT

    @property
    def ratio(self) -> float | None:
        """Ours as a multiple of the floor."""
        return self.ours / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None when there is none."""
        return self.goal.met(self.ours, self.floor)

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "name": self.name,
            "ours": self.ours,
            "floor": self.floor,
            "ratio": self.ratio,
            "goal": self.goal.text,
            "met": self.met,
        }


class Pair(NamedTuple):
    """The figures of one round, of work and floor."""

    ours: float
    floor: float


async def in_turns(repeat: int, *works: Work, warm_up: bool = True) -> list[tuple[float, ...]]:
    """Run every work in turn, `repeat` times; returns the figures of each round."""
    rounds = []
    for number in range(-1 if warm_up else 0, repeat):
        figures = []
        for work in works:
            gc.collect()
            figures.append(await work())
        if number >= 0:
            rounds.append(tuple(figures))
    return rounds


def middle(rounds: Sequence[tuple[float, ...]], ours: int = 0, floor: int = 1) -> Pair:
    """Choose the round whose ratio is the median, and two columns of it."""
    pairs = sorted((Pair(one[ours], one[floor]) for one in rounds), key=_ratio)
    return pairs[(len(pairs) - 1) // 2]


def _ratio(pair: Pair) -> float:
    return pair.ours / pair.floor if pair.floor else 0.0


def medians(work: Call, count: int) -> Work:
    """Make a round of calls, one at a time; its figure is the median of their seconds."""
    return partial(p50, work, count)


async def p50(work: Call, count: int) -> float:
    """Return the median seconds of `count` calls, one at a time."""
    return statistics.median([await seconds(work(number)) for number in range(count)])


async def seconds(work: Awaitable[object]) -> float:
    """Return how long something takes."""
    began = now()
    await work
    return now() - began


async def rate(work: Call, count: int, in_flight: int) -> float:
    """Return how many calls a second end while `in_flight` of them are always under way."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    began = now()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return count / (now() - began)


def spread(figure: float | None, unit: str) -> str:
    """Write a figure for people."""
    if figure is None:
        return ""
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e3, "ms")):
            if figure * factor >= 1:
                return f"{figure * factor:.2f} {name}"
        return f"{figure * 1e6:.0f} µs"
    if unit == "/s":
        return f"{figure:,.0f}/s"
    per = "/s" if unit == "B/s" else ""
    return f"{figure / 1e6:,.1f} MB{per}" if figure >= 1e5 else f"{figure / 1e3:,.1f} kB{per}"


def table(results: Sequence[Result]) -> str:
    """Write the lines as a table."""
    rows = [("name", "ours", "floor", "ratio", "goal", "")]
    for one in results:
        ratio = "" if one.ratio is None else f"{one.ratio:.2f} ×"
        met = {True: "met", False: "NOT MET", None: ""}[one.met]
        ours, floor = spread(one.ours, one.unit), spread(one.floor, one.unit)
        rows.append((one.name, ours, floor, ratio, one.goal.text, met))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [row[column].rjust(widths[column]) for column in (1, 2, 3)]
        cells += [row[4].ljust(widths[4]), row[5]]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
