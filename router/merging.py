"""What several routers answered, as one answer. Pure, but for asking for further pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from .models import ConversationInfo, JobInfo, JobReport, JobStatus, NodeInfo

# A job of several parts is what the first of these is that any part is.
_STATES: Final[tuple[JobStatus, ...]] = ("running", "failed", "cancelled", "done")

Page = Callable[[int, str | None, int], Awaitable[list[str]]]
"""Asks a router, by its number, for names after one, and how many at most."""


async def merged_names(
    page: Page, count: int, after: str | None, limit: int | None, page_names: int
) -> AsyncIterator[str]:
    """Yield the names of so many routers in the order of their UTF-8 bytes.

    Each router's pages come in that order, and no name is with two of them; a router is asked for
    more only when what it gave is used up. Names made meanwhile appear if they come after what was
    read.
    """
    left = limit
    asked = page_names if left is None else min(page_names, left)
    names: dict[int, list[str]] = {}
    ended: set[int] = set()
    last = dict.fromkeys(range(count), after)
    while left is None or left > 0:
        for index in range(count):
            if not names.get(index) and index not in ended:
                found = await page(index, last[index], asked)
                names[index] = found[::-1]
                if len(found) < asked:
                    ended.add(index)
                if found:
                    last[index] = found[-1]
        filled = [index for index in range(count) if names[index]]
        if not filled:
            return
        first = min(filled, key=lambda index: names[index][-1].encode())
        yield names[first].pop()
        left = None if left is None else left - 1


def merge_nodes(answers: Iterable[Sequence[NodeInfo]]) -> list[NodeInfo]:
    """Add up what each router has on a node; it is draining when any says so."""
    found: dict[str, NodeInfo] = {}
    for node in (node for answer in answers for node in answer):
        known = found.get(node.node_id)
        if known is None:
            found[node.node_id] = node
            continue
        found[node.node_id] = replace(
            known,
            state="draining" if "draining" in (known.state, node.state) else "alive",
            disk_id=known.disk_id or node.disk_id,
            active=known.active + node.active,
            idle=known.idle + node.idle,
            max_active=known.max_active + node.max_active,
        )
    return list(found.values())


def merge_active(
    answers: Iterable[Sequence[ConversationInfo]], limit: int
) -> list[ConversationInfo]:
    """Put the conversations used last first, after those whose owner is silent."""
    every = [info for answer in answers for info in answer]
    silent = [info for info in every if info.pid is None]
    heard = sorted((i for i in every if i.pid is not None), key=lambda i: i.last_active_at)
    return [*silent, *reversed(heard)][:limit]


def merge_jobs(answers: Iterable[Sequence[JobInfo]]) -> list[JobInfo]:
    """Put the parts of each job together, in the order in which the jobs began."""
    every = sorted((job for answer in answers for job in answer), key=lambda job: job.id)
    found = [merge_job(list(parts)) for _, parts in groupby(every, key=lambda job: job.id)]
    return sorted(found, key=lambda job: (job.started_at, job.id))


def merge_job(parts: Sequence[JobInfo]) -> JobInfo:
    """Add up the parts of one job."""
    state = _state(job.state for job in parts)
    return replace(
        parts[0],
        state=state,
        total=sum(job.total for job in parts),
        moved=sum(job.moved for job in parts),
        failed=sum(job.failed for job in parts),
        bytes=sum(job.bytes for job in parts),
        started_at=min(job.started_at for job in parts),
        ended_at=None if state == "running" else max(job.ended_at or "" for job in parts),
        announced=all(job.announced for job in parts),
        error=next((job.error for job in parts if job.error is not None), None),
    )


def merge_reports(parts: Sequence[JobReport]) -> JobReport:
    """Add up what the parts of one job did."""
    return replace(
        parts[0],
        state=_state(part.state for part in parts),
        moved=sum(part.moved for part in parts),
        bytes=sum(part.bytes for part in parts),
        reports=tuple(report for part in parts for report in part.reports),
        failed={name: reason for part in parts for name, reason in part.failed.items()},
        seconds=max(part.seconds for part in parts),
        error=next((part.error for part in parts if part.error is not None), None),
    )


def _state(states: Iterable[JobStatus]) -> JobStatus:
    found = set(states)
    return next(state for state in _STATES if state in found)
