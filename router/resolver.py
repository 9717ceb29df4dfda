"""How a process asks the router: found by its name, asked again when it is starting anew."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

import ray

from sessions_actor.channel import Address, Succession
from sessions_actor.overload import Bounds
from sessions_actor.retry import Tries, is_lost

from .cluster import answer
from .shards import Shard, shard_of

RETRY_SLEEP_MIN_S: Final = 0.05


class RouterResolver:
    """Asks the deployment's routers; picklable, it finds them anew in each process.

    A conversation's questions go to the router of its shard.
    """

    def __init__(
        self,
        namespace: str,
        call_timeout_s: float,
        bounds: Bounds | None = None,
        shards: int = 1,
    ) -> None:
        self._namespace, self._call_timeout_s = namespace, call_timeout_s
        self.bounds, self.shards = bounds or Bounds(), shards
        self._routers: dict[int, Any] = {}
        self._actors: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        known = (self._namespace, self._call_timeout_s, self.bounds, self.shards)
        return RouterResolver, known

    @property
    def call_timeout_s(self) -> float:
        """How long a call is retried."""
        return self._call_timeout_s

    async def resolve(self, name: str, failed: Address | None) -> Address:
        """Return the conversation's owner; see `Router.resolve`."""
        return await self._resolve(name, failed, create=True)

    async def find(self, name: str, failed: Address | None) -> Address:
        """Return the owner of a conversation that there is.

        Raises: ConversationNotFoundError, and nothing is made.
        """
        return await self._resolve(name, failed, create=False)

    async def _resolve(self, name: str, failed: Address | None, *, create: bool) -> Address:
        epoch = None if failed is None else failed.epoch
        found: Address = await self.ask(
            lambda router: router.resolve.remote(name, epoch, create), shard_of(name, self.shards)
        )
        return self._shared(found)

    async def succession(self, name: str, epoch: int, wait_s: float) -> Succession | None:
        """Wait for a later activation; see `Router.succession`."""
        found: Succession | None = await self.ask(
            lambda router: router.succession.remote(name, epoch, wait_s),
            shard_of(name, self.shards),
        )
        return found and found._replace(address=self._shared(found.address))

    def _shared(self, found: Address) -> Address:
        """Have all conversations that an actor served keep one handle of it: each takes 30 KB."""
        key = hash(found.actor)
        known = self._actors.get(key)
        if known is None or known != found.actor:
            self._actors[key] = found.actor
            return found
        return replace(found, actor=known)

    async def ask(self, call: Callable[[Any], Any], index: int = 0) -> Any:
        """Make one call to a router, again when it died on the way: all of them allow that.

        Args: `index` is that of its shard.
        Raises: what the router raised; RuntimeError when there is no router.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._call_timeout_s
        tries = Tries()
        while True:
            try:
                return await answer(call(self._find(index)))
            except Exception as error:
                if not is_lost(error) or loop.time() >= deadline:
                    raise
                self._routers.pop(index, None)
                tries.count += 1
                await asyncio.sleep(max(RETRY_SLEEP_MIN_S, tries.wait_s()))

    def _find(self, index: int) -> Any:
        if index not in self._routers:
            try:
                name = Shard(index, self.shards).router_name
                self._routers[index] = ray.get_actor(name, self._namespace)
            except ValueError:
                raise RuntimeError(
                    f"no router serves the namespace {self._namespace!r} on this cluster: run"
                    " `sessions-actor up`, or connect with router.connect()"
                ) from None
        return self._routers[index]
