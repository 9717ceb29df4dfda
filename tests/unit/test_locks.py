"""One lock per name."""

import asyncio

import pytest

from router.locks import NameLocks


async def test_one_name_at_a_time_in_order_and_others_meanwhile() -> None:
    locks = NameLocks()
    events: list[str] = []

    async def work(name: str, number: int) -> None:
        async with locks.hold(name):
            events.append(f"{name}{number} begins")
            await asyncio.sleep(0)
            events.append(f"{name}{number} ends")

    await asyncio.gather(*(work("a", i) for i in range(3)), work("b", 0))
    own = [event for event in events if event[0] == "a"]
    assert own == [f"a{i} {what}" for i in range(3) for what in ("begins", "ends")]
    assert events.index("b0 begins") < events.index("a2 begins")
    assert not locks.is_held("a")


async def test_a_lock_is_given_back_whatever_happens() -> None:
    locks = NameLocks()

    async def fail() -> None:
        async with locks.hold("a"):
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await fail()
    async with locks.hold("a"):
        assert locks.is_held("a")
        waiting = asyncio.create_task(fail())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert locks.is_held("a")
    assert not locks.is_held("a")
