"""The floor of a remote call. It imports nothing of ours: the floor of memory, too."""

import os


class BareActor:
    """An async actor that does nothing."""

    async def call(self, data: bytes) -> None:
        """Take bytes."""

    async def give(self, size: int) -> bytes:
        """Give bytes."""
        return bytes(size)

    async def pid(self) -> int:
        """Say which process this is."""
        return os.getpid()
