"""Content set aside on disk, so that only a conversation's skeleton stays in memory."""

import tempfile
from types import TracebackType
from typing import NamedTuple, Self

_MEMORY_BYTES = 4 * 1024 * 1024


class Slot(NamedTuple):
    """Where a piece lies in its spool."""

    offset: int
    length: int


class Spool:
    """An append-only temporary file, kept in memory while it is small; gone once closed."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115
        self._end = 0

    def put(self, data: bytes) -> Slot:
        """Set a piece aside."""
        self._file.seek(self._end)
        self._file.write(data)
        slot = Slot(self._end, len(data))
        self._end += len(data)
        return slot

    def get(self, slot: Slot) -> bytes:
        """Return a piece that was set aside."""
        self._file.seek(slot.offset)
        return self._file.read(slot.length)

    def clear(self) -> None:
        """Forget every piece."""
        self._file.seek(0)
        self._file.truncate()
        self._end = 0

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
