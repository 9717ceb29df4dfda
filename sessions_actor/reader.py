"""Streams from a conversation to one reader: history by windows, changes by pages.

Rules:
- Everything is pulled: one bounded window per call, a cursor with each. A reader that stops costs
  nothing more; one that goes on has a few windows read ahead.
- A stream survives hibernation, a crash and a migration: the cursor says where to go on.
"""

import asyncio
import contextlib
import itertools
import os
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final, NamedTuple

from . import wire
from .channel import Address, Channel
from .codec import loads, loads_array
from .limits import KIB, MIB, WINDOW_BYTES_MAX
from .records import ChangeEvent
from .retry import is_lost
from .wire import FeedPage, LoadedWindow, WindowRequest

READ_AHEAD_WINDOWS: Final = 2


class Plan(NamedTuple):
    """How a stream grows: bounds (rows, bytes) of its first windows, and which one reads ahead."""

    first: tuple[tuple[int, int], ...]
    read_ahead_from: int

    def bounds(self, serial: int) -> tuple[int, int]:
        """Return the rows and bytes of a window, counted from 0."""
        return self.first[serial] if serial < len(self.first) else (ROWS_MAX, BYTES_MAX)


ROWS_MAX, BYTES_MAX = 5000, MIB

# A reader who wants the newest message alone pays for that one; who reads on gets ever more.
NEWEST_FIRST: Final = Plan(((1, MIB), (8, MIB), (64, MIB), (512, MIB)), 2)
FROM_THE_ROOT: Final = Plan(((100, 64 * KIB), (1000, MIB // 2)), 1)
WHOLE: Final = Plan((), 1)

POLL_WAIT_S: Final = 20.0
# A poll that takes so much longer than it asked to is lost.
POLL_GRACE_S: Final = 10.0

assert BYTES_MAX <= WINDOW_BYTES_MAX

_streams = itertools.count()


def decode(window: LoadedWindow) -> list[Any]:
    """Parse a window's texts; a damaged row is passed over, as in process."""
    try:
        return loads_array(window.texts)
    except ValueError:
        return [value for _, value in decode_each(window)]


def decode_each(window: LoadedWindow) -> list[tuple[int, Any]]:
    """Parse a window's texts one by one: (index, value) of each that can be parsed."""
    found = []
    for index, text in enumerate(window.split()):
        with contextlib.suppress(ValueError):
            found.append((index, loads(text)))
    return found


def is_message(value: Any) -> bool:
    """Say whether a stored value has the shape of a message."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("parts"), list)
    )


async def windows(
    channel: Channel,
    session_id: str,
    kind: str,
    params: dict[str, Any],
    plan: Plan = FROM_THE_ROOT,
) -> AsyncGenerator[LoadedWindow, None]:
    """Pull a stream window by window, reading ahead once the reader goes on."""
    stream = f"{os.getpid()}.{id(channel)}.{next(_streams)}"

    async def pull(serial: int, cursor: Any) -> LoadedWindow:
        rows, size = plan.bounds(serial)
        request = WindowRequest(stream, serial, kind, params, cursor, size, rows)
        args = wire.dump_args([list(request)], {}, ["request"])
        return wire.load_window(await channel.call(session_id, wire.READ_WINDOW, args))

    serial, cursor = 0, None
    while serial < plan.read_ahead_from:
        window = await pull(serial, cursor)
        yield window
        serial, cursor = serial + 1, window.cursor
        if cursor is None:
            return

    ready: asyncio.Queue[LoadedWindow | BaseException] = asyncio.Queue(READ_AHEAD_WINDOWS)

    async def read_ahead() -> None:
        place, after = serial, cursor
        try:
            while after is not None:
                window = await pull(place, after)
                place, after = place + 1, window.cursor
                await ready.put(window)
        except Exception as error:
            await ready.put(error)

    task = asyncio.create_task(read_ahead())
    try:
        while cursor is not None:
            item = await ready.get()
            if isinstance(item, BaseException):
                raise item
            cursor = item.cursor
            yield item
    finally:
        task.cancel()


class ChangeStream(AsyncIterator[ChangeEvent]):
    """The change feed of a conversation, as an async iterator.

    It begins where it was made: every write that was acknowledged later is in it, in order, across
    hibernation and migration. An event of type "gap" stands where some may be missing (the
    owner's process died, or the reader fell far behind): read again what was derived from them.

    Following does not keep a conversation awake: it hibernates as if nobody did.
    """

    def __init__(self, channel: Channel, wanted: Callable[[ChangeEvent], bool]) -> None:
        self._channel, self._wanted = channel, wanted
        self._begun = channel.start("", wire.FOLLOW_CHANGES, wire.dump_args([], {}, []))
        self._events = self._run()

    async def begun(self) -> None:
        """Wait until the feed has begun; iterating does so too.

        Raises: what the first call to a conversation raises.
        """
        await asyncio.shield(self._begun.future)

    def __aiter__(self) -> "ChangeStream":
        return self

    async def __anext__(self) -> ChangeEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """End the stream."""
        await self._events.aclose()

    async def __aenter__(self) -> "ChangeStream":
        await self.begun()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def _run(self) -> AsyncGenerator[ChangeEvent, None]:
        await self.begun()
        address, place = self._begun.owner, loads(self._begun.future.result())
        assert address is not None
        told = False  # whether the reader knows of what is missing here
        while True:
            page = await self._poll(address, place)
            if page is None or page.lost:
                if not told:
                    yield ChangeEvent(wire.GAP, "")
                told = True
            if page is not None:
                for data in page.events:
                    event = wire.load_event(data)
                    if self._wanted(event):
                        yield event
                place = page.place
                told = told and page.lost
                if not page.ended:
                    continue
            found = await self._channel.resolver.succession(
                address.name, address.epoch, POLL_WAIT_S
            )
            if found is not None:
                if not found.next and not told:
                    yield ChangeEvent(wire.GAP, "")
                    told = True
                address, place = found.address, 0

    async def _poll(self, address: Address, place: int) -> FeedPage | None:
        """Return the next page; None when the owner cannot be reached."""
        asked = address.actor.changes.remote(address.name, address.epoch, place, POLL_WAIT_S)
        try:
            data = await asyncio.wait_for(asked, POLL_WAIT_S + POLL_GRACE_S)
        except TimeoutError:
            return None
        except Exception as error:
            if not is_lost(error):
                raise
            return None
        return pickle.loads(data)  # type: ignore[no-any-return]
