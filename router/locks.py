"""One lock per name, for as long as someone wants it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NameLocks:
    """Keeps what happens to one conversation in order, and different ones apart."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def is_held(self, name: str) -> bool:
        """Say whether someone holds or wants a name's lock."""
        return name in self._locks

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold a name's lock; those who want it are served in order."""
        lock, users = self._locks.get(name, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)
