"""Any name of 1 to 1,024 UTF-8 bytes is a name, and leads to one file that no name can escape."""

import re

import pytest

from sessions_actor.names import check_name, file_stem

ODD = [
    "a",
    " ",
    "/",
    "..",
    "../../etc/passwd",
    "\0",
    "a\0b",
    "💥",
    "é",
    "e\u0301",
    "CON",
    "a" * 1024,
]


@pytest.mark.parametrize("name", ODD)
def test_any_text_is_a_name(name: str) -> None:
    assert check_name(name) == name.encode()
    assert re.fullmatch(r"([0-9a-f]{2})/\1[0-9a-f]{62}", file_stem(name))


def test_files_differ_as_names_do() -> None:
    assert len({file_stem(name) for name in ODD}) == len(ODD)
    assert file_stem("alice") == file_stem("alice")


@pytest.mark.parametrize(
    "name", ["", "a" * 1025, "é" * 513, "\ud83d", b"a", None, 5], ids=lambda name: repr(name)[:12]
)
def test_everything_else_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="a conversation's name"):
        check_name(name)


def test_the_longest_name_counts_bytes() -> None:
    assert len(check_name("é" * 512)) == 1024
