"""How a message too long for one row is cut into slices, and put together again."""

from collections.abc import Iterable

from .limits import ROW_BYTES_MAX, UTF8_CHARACTER_BYTES_MAX


def split_utf8(data: bytes, limit: int = ROW_BYTES_MAX) -> list[bytes]:
    """Cut UTF-8 text into slices of at most `limit` bytes, never inside a character.

    Returns: at least one slice; each is as long as it can be, and none is empty unless `data` is.
    """
    assert limit >= UTF8_CHARACTER_BYTES_MAX
    if len(data) <= limit:
        return [data]
    slices, start = [], 0
    while len(data) - start > limit:
        end = start + limit
        while data[end] & 0xC0 == 0x80 and end > start + limit + 1 - UTF8_CHARACTER_BYTES_MAX:
            end -= 1  # a continuation byte: the character began earlier, at most three before
        slices.append(data[start:end])
        start = end
    return [*slices, data[start:]]


def join_slices(slices: Iterable[bytes]) -> bytes:
    """Put slices together again."""
    return b"".join(slices)
