"""How a process asks the router: found by its name, asked again when it is starting anew."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import ray

from sessions_actor.channel import Address, Succession
from sessions_actor.overload import Bounds
from sessions_actor.retry import Tries, is_lost

from .cluster import answer
from .service import ROUTER_NAME

RETRY_SLEEP_MIN_S: Final = 0.05


class RouterResolver:
    """Asks the deployment's router; picklable, it finds the router anew in each process."""

    def __init__(self, namespace: str, call_timeout_s: float, bounds: Bounds | None = None) -> None:
        self._namespace, self._call_timeout_s = namespace, call_timeout_s
        self.bounds = bounds or Bounds()
        self._router: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RouterResolver, (self._namespace, self._call_timeout_s, self.bounds)

    @property
    def call_timeout_s(self) -> float:
        """How long a call is retried."""
        return self._call_timeout_s

    async def resolve(self, name: str, failed: Address | None) -> Address:
        """Return the conversation's owner; see `Router.resolve`."""
        epoch = None if failed is None else failed.epoch
        found: Address = await self.ask(lambda router: router.resolve.remote(name, epoch))
        return found

    async def succession(self, name: str, epoch: int, wait_s: float) -> Succession | None:
        """Wait for a later activation; see `Router.succession`."""
        found: Succession | None = await self.ask(
            lambda router: router.succession.remote(name, epoch, wait_s)
        )
        return found

    async def ask(self, call: Callable[[Any], Any]) -> Any:
        """Make one call to the router, again when it died on the way: all of them allow that.

        Raises: what the router raised; RuntimeError when there is no router.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._call_timeout_s
        tries = Tries()
        while True:
            try:
                return await answer(call(self._find()))
            except Exception as error:
                if not is_lost(error) or loop.time() >= deadline:
                    raise
                self._router = None
                tries.count += 1
                await asyncio.sleep(max(RETRY_SLEEP_MIN_S, tries.wait_s()))

    def _find(self) -> Any:
        if self._router is None:
            try:
                self._router = ray.get_actor(ROUTER_NAME, self._namespace)
            except ValueError:
                raise RuntimeError(
                    f"no router serves the namespace {self._namespace!r} on this cluster: run"
                    " `sessions-actor up`, or connect with router.connect()"
                ) from None
        return self._router
