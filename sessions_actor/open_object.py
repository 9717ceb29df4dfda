"""One activation of a conversation: its file, its host, from start to end. No Ray.

`open_object` is for scripts and tests in one process; the actor uses `Activation` itself.
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

from .durable_object import DurableObject, ObjectState
from .errors import ReplicaUnavailableError, StaleEpochError
from .limits import QUOTA_BYTES_DEFAULT
from .names import check_name
from .replica import Replica, ReplicaSpec
from .storage import Storage

Host = TypeVar("Host", bound=DurableObject)


class Activation(Generic[Host]):
    """One life of a conversation in memory, to be started and closed once.

    Args: `epoch` is what the directory granted: the file must not carry a higher one, and is
        stamped with it. None keeps the file's: whoever holds the file's lock owns it. `replica`
        has the file copied while it is open, and once more before it closes.
    """

    def __init__(
        self,
        cls: type[Host],
        *,
        name: str,
        path: str | os.PathLike[str],
        quota_bytes: int = QUOTA_BYTES_DEFAULT,
        epoch: int | None = None,
        vfs: str | None = None,
        replica: ReplicaSpec | None = None,
    ) -> None:
        if not (isinstance(cls, type) and issubclass(cls, DurableObject)):
            raise TypeError(f"{cls!r} is no class derived from DurableObject")
        check_name(name)
        if epoch is not None and epoch < 0:
            raise ValueError(f"an epoch counts activations, it cannot be {epoch}")
        self._class, self._name, self._path = cls, name, path
        self._quota_bytes, self._epoch, self._vfs = quota_bytes, epoch, vfs
        self._replica_spec = replica
        self._replica: Replica | None = None
        self._storage: Storage | None = None
        self._host: Host | None = None
        self.behind = False
        """Whether the file was closed before its replica had all of it."""

    @property
    def replica(self) -> Replica | None:
        """The file's replica while it is open; None where there is none."""
        return self._replica

    @property
    def host(self) -> Host:
        """The object, once started.

        Raises: RuntimeError before `start` and after `close`.
        """
        if self._host is None:
            raise RuntimeError(f"conversation {self._name!r} is not active here")
        return self._host

    @property
    def storage(self) -> Storage:
        """The open file, once started."""
        return self.host.storage

    async def start(self) -> Host:
        """Open the file, take ownership, start the host; undo all of it when one fails.

        Raises: StaleEpochError when a later activation owns the file; StorageError; what the
            host's startup raised; ReplicaUnavailableError.
        """
        if self._storage is not None:
            raise RuntimeError(f"conversation {self._name!r} is active already")
        self._storage = storage = Storage(self._path, quota_bytes=self._quota_bytes, vfs=self._vfs)
        try:
            epoch = self._take_ownership(storage)
            if self._replica_spec is not None:
                self._replica = Replica(storage.path, self._replica_spec)
                self._replica.start(storage)
            self._host = host = self._class(ObjectState(self._name, storage, epoch))
            if host.installed_lifecycle is not None:
                await host.installed_lifecycle.start()
            else:
                await host.on_start()
            await self._confirmed(storage)
        except BaseException:
            await self.close()
            raise
        return host

    async def _confirmed(self, storage: Storage) -> None:
        """Wait until the start is durable.

        One whose first copy takes long serves meanwhile: who gave it up would begin it anew. Its
        calls wait for the copy, which no acknowledgement comes before.
        """
        if self._replica is not None:
            self._replica.hold_back(storage)
        try:
            await storage.durable()
        except ReplicaUnavailableError:
            if self._replica is None or not self._replica.is_copying:
                raise

    def _take_ownership(self, storage: Storage) -> int:
        """Stamp name, epoch and, in a new file, its birth; write nothing that is there already."""
        known = storage.meta.get_all()
        current = known.get("epoch", 0)
        epoch = current if self._epoch is None else self._epoch
        if current > epoch:
            raise StaleEpochError(epoch, current)
        wanted = {
            "name": self._name,
            "epoch": epoch,
            "created_at": known.get("created_at", time.time_ns() // 1_000_000),
        }
        if not wanted.items() <= known.items():
            storage.meta.put(wanted)
            # Ownership is durable before anything is done in its name.
            storage.flush()
        storage.fence(epoch)
        return epoch

    async def close(self) -> None:
        """Dispose of the host and close the file; closing twice is fine.

        Raises: what disposal raised, OutputGateBrokenError when the last commit failed; the file
            is closed all the same.
        """
        host, self._host = self._host, None
        storage, self._storage = self._storage, None
        try:
            if host is not None and host.installed_lifecycle is not None:
                await host.installed_lifecycle.dispose()
        finally:
            if storage is not None:
                try:
                    await self._finish_replica(storage)
                finally:
                    storage.close()

    async def _finish_replica(self, storage: Storage) -> None:
        replica, self._replica = self._replica, None
        if replica is None:
            return
        if storage.broken is not None:
            self.behind = True
            replica.abandon()
            return
        storage.flush()
        self.behind = not await replica.finish()
        if not self.behind:
            storage.copied()


@asynccontextmanager
async def _opened(activation: Activation[Host]) -> AsyncIterator[Host]:
    host = await activation.start()
    try:
        yield host
    finally:
        await activation.close()


def open_object(
    cls: type[Host],
    *,
    name: str,
    path: str | os.PathLike[str],
    quota_bytes: int = QUOTA_BYTES_DEFAULT,
    epoch: int | None = None,
) -> AbstractAsyncContextManager[Host]:
    """Run a conversation's object in this process: started on entry, closed on exit.

    Args: as `Activation`.
    Raises: ValueError and TypeError for a bad name or class at once; on entry StorageError when
        the file cannot be opened or is open elsewhere, StaleEpochError, what startup raised.
    """
    activation = Activation(cls, name=name, path=path, quota_bytes=quota_bytes, epoch=epoch)
    return _opened(activation)
