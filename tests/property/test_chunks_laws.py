"""Slices put together are the text again; each is whole characters and as long as can be."""

from hypothesis import example, given
from hypothesis import strategies as st

from sessions_actor.chunks import join_slices, split_utf8

from .json_values import law


def slow_split(text: str, limit: int) -> list[bytes]:
    """Fill slices a character at a time."""
    slices = [b""]
    for character in text:
        data = character.encode()
        if len(slices[-1]) + len(data) > limit:
            slices.append(b"")
        slices[-1] += data
    return slices


@law
@given(st.text(st.sampled_from("aé東💥"), max_size=200), st.integers(4, 40))
def test_split(text: str, limit: int) -> None:
    slices = split_utf8(text.encode(), limit)
    assert slices == slow_split(text, limit)
    assert join_slices(slices) == text.encode()


@law
@given(st.binary(max_size=100), st.integers(4, 12))
@example(b"\x80" * 5, 4)
def test_any_bytes_are_cut_and_joined(data: bytes, limit: int) -> None:
    slices = split_utf8(data, limit)
    assert join_slices(slices) == data
    assert all(len(piece) <= limit for piece in slices)
