"""The ring of events that followers pull from."""

import asyncio

from sessions_actor import change_log
from sessions_actor.change_log import ChangeLog


async def test_events_are_pulled_from_a_place() -> None:
    log = ChangeLog(complete=True)
    assert log.place == 0
    for i in range(5):
        log.record(b"%d" % i)
    page = await log.poll(2, 0)
    assert (page.events, page.place, page.ended, page.lost) == ([b"2", b"3", b"4"], 5, False, False)


async def test_a_poll_waits_for_the_next_event() -> None:
    log = ChangeLog(complete=True)
    waiting = [asyncio.create_task(log.poll(0, 10)) for _ in range(3)]
    await asyncio.sleep(0)
    log.record(b"x")
    assert [page.events for page in await asyncio.gather(*waiting)] == [[b"x"]] * 3
    page = await log.poll(1, 0.001)
    assert (page.events, page.place, page.ended) == ([], 1, False)


async def test_a_closed_log_gives_what_is_left_and_then_ends() -> None:
    log = ChangeLog(complete=True)
    log.record(b"x")
    waiting = asyncio.create_task(log.poll(1, 10))
    await asyncio.sleep(0)
    log.close()
    assert (await waiting).ended
    page = await log.poll(0, 10)
    assert (page.events, page.ended) == ([b"x"], True)


async def test_who_falls_behind_is_told(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(change_log, "EVENTS_MAX", 3)
    log = ChangeLog(complete=True)
    for i in range(5):
        log.record(b"%d" % i)
    page = await log.poll(0, 0)
    assert (page.events, page.place, page.lost) == ([b"2", b"3", b"4"], 5, True)
    assert not (await log.poll(page.place, 0)).lost


async def test_bytes_are_bounded_and_the_newest_event_stays(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(change_log, "BYTES_MAX", 10)
    log = ChangeLog(complete=True)
    for size in (4, 4, 4, 100):
        log.record(b"x" * size)
    assert log.size == 100
    assert [len(event) for event in (await log.poll(0, 0)).events] == [100]


async def test_a_page_is_bounded_but_never_empty(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(change_log, "PAGE_BYTES", 5)
    log = ChangeLog(complete=True)
    log.record(b"x" * 50)
    log.record(b"y")
    first = await log.poll(0, 0)
    assert (len(first.events), first.place) == (1, 1)
    log.close()
    last = await log.poll(1, 0)
    assert (last.events, last.ended) == ([b"y"], True)
    assert not first.ended


async def test_recording_that_began_late_has_lost_what_came_before() -> None:
    log = ChangeLog(complete=False)
    begun = log.place
    log.record(b"x")
    assert not (await log.poll(begun, 0)).lost
    assert (await log.poll(0, 0)).lost


async def test_a_skip_is_told_to_everyone_who_follows() -> None:
    log = ChangeLog(complete=True)
    for number in range(3):
        log.record(b"%d" % number)
    log.skip()
    log.record(b"after")
    behind, current = await log.poll(1, 0), await log.poll(3, 0)
    assert behind.lost
    assert current.lost
    assert behind.events == current.events == [b"after"]
    assert not (await log.poll(behind.place, 0)).lost
