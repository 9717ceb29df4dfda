"""The router's side of leases, and the agent that renews them."""

import asyncio

import pytest

from router.agent import Agent
from router.leases import FIRST_TERM, Grant, Leases
from sessions_actor.lease import NodeLease

from .fake_cluster import until


class Clock:
    """Seconds, as told."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    return Leases(10.0, clock)


def test_a_term_ends_only_after_its_lease_ran_out(leases: Leases, clock: Clock) -> None:
    assert leases.renew("n") == Grant(FIRST_TERM, 10.0)
    clock.s = 9.9
    assert leases.end_term("n") is None
    clock.s = 10.0
    assert leases.end_term("n") == FIRST_TERM + 1
    assert leases.renew("n") == Grant(FIRST_TERM + 1, 10.0)
    assert leases.end_term("n") is None


def test_what_an_earlier_router_may_have_granted_is_waited_for(leases: Leases, clock: Clock):
    leases.expect("n", 7)
    assert leases.left_s("n") == 10.0
    assert leases.end_term("n") is None
    clock.s = 10.0
    assert leases.end_term("n") == 8


def test_a_node_gives_up_before_its_router_takes(leases: Leases, clock: Clock) -> None:
    node = NodeLease.in_memory(clock)
    asked_at = clock.s
    clock.s += 4.0  # on its way
    grant = leases.renew("n")
    clock.s += 3.0  # on its way back
    node.grant(grant.term, asked_at, grant.ttl_s)
    assert node.holds(grant.term)
    clock.s = 9.95
    assert not node.holds(grant.term)
    assert leases.end_term("n") is None


async def test_an_agent_renews_until_its_router_is_gone_and_goes_on_with_the_next() -> None:
    clock = asyncio.get_running_loop().time
    lease = NodeLease.in_memory(clock)
    routers: list[Leases] = [Leases(0.2, clock)]

    async def ask(name: str) -> Grant | None:
        if not routers:
            raise ConnectionError
        return routers[0].renew("n")

    task = asyncio.create_task(Agent({"router": lease}, ask).run())
    await until(lambda: routers[0].renewals >= 3)
    assert lease.holds(FIRST_TERM)
    routers.clear()
    await until(lambda: not lease.holds(FIRST_TERM))
    later = Leases(0.2, clock)
    later.expect("n", 5)
    routers.append(later)
    await until(lambda: lease.holds(5))
    task.cancel()


async def test_an_agent_waits_for_a_router_that_does_not_answer_no_longer_than_it_must() -> None:
    clock = asyncio.get_running_loop().time
    lease = NodeLease.in_memory(clock)
    asked = 0

    async def ask(name: str) -> Grant | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            await asyncio.Event().wait()
        return Grant(1, 0.2)

    task = asyncio.create_task(Agent({"router": lease}, ask).run())
    await until(lambda: asked >= 4)
    task.cancel()
