"""Cutting between characters, at and around the limit."""

from sessions_actor.chunks import join_slices, split_utf8
from sessions_actor.limits import ROW_BYTES_MAX


def test_up_to_the_limit_there_is_one_slice() -> None:
    for size in (0, 1, ROW_BYTES_MAX):
        assert split_utf8(b"x" * size) == [b"x" * size]


def test_one_byte_more_makes_two() -> None:
    assert list(map(len, split_utf8(b"x" * (ROW_BYTES_MAX + 1)))) == [ROW_BYTES_MAX, 1]


def test_five_megabytes_make_four() -> None:
    assert len(split_utf8(b"x" * 5_000_000)) == 4


def test_a_character_on_the_boundary_moves_on_whole() -> None:
    for character in ("é", "東", "💥"):
        data = b"x" * (ROW_BYTES_MAX - 1) + character.encode() + b"y"
        slices = split_utf8(data)
        assert slices[0] == b"x" * (ROW_BYTES_MAX - 1)
        assert slices[1].decode() == character + "y"
        assert join_slices(slices) == data


def test_bytes_that_are_no_utf8_are_cut_too() -> None:
    assert join_slices(split_utf8(b"\x80" * 100, 10)) == b"\x80" * 100
