"""How a process asks the router, and what it keeps of the answers."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from router.resolver import RouterResolver
from sessions_actor.channel import Address, Succession


class Handle:
    """Stands for a handle of an actor: each answer brings another, equal one."""

    def __init__(self, actor: int, hashed: int | None = None) -> None:
        self.actor, self.hashed = actor, actor if hashed is None else hashed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.actor == self.actor

    def __hash__(self) -> int:
        return self.hashed


class Router:
    """Stands for a router's handle whose answers are made by a function of the name."""

    def __init__(self, found: Callable[[str], Address]) -> None:
        self.resolve = self.succession = self
        self._found = found

    def remote(self, name: str, _epoch: int | None, *more: Any) -> Any:
        async def answer() -> Any:
            found = self._found(name)
            return Succession(found, True) if isinstance(more[0], float) else found

        return asyncio.ensure_future(answer())


def resolver_of(found: Callable[[str], Address]) -> RouterResolver:
    made = RouterResolver("here", 5.0)
    made._routers[0] = Router(found)
    return made


async def test_conversations_of_one_actor_share_its_handle() -> None:
    resolver = resolver_of(lambda name: Address(name, 1, Handle(int(name) % 3)))
    found = [await resolver.resolve(str(number), None) for number in range(30)]
    assert [one.name for one in found] == [str(number) for number in range(30)]
    assert [one.actor.actor for one in found] == [number % 3 for number in range(30)]
    assert len({id(one.actor) for one in found}) == 3
    later = await resolver.succession("4", 1, 1.0)
    assert later is not None
    assert later.address.actor is found[1].actor


async def test_actors_whose_hashes_are_the_same_are_told_apart() -> None:
    resolver = resolver_of(lambda name: Address(name, 1, Handle(int(name), hashed=0)))
    found = [await resolver.resolve(str(number), None) for number in (1, 2, 1)]
    assert [one.actor.actor for one in found] == [1, 2, 1]


async def test_handles_go_with_the_last_who_uses_them() -> None:
    resolver = resolver_of(lambda name: Address(name, 1, Handle(int(name))))
    for number in range(100):
        await resolver.resolve(str(number), None)
    gc.collect()
    assert len(resolver._actors) <= 1, "but for the last answer"
