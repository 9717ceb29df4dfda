"""Key-value entries, at once and awaited."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from sessions_actor.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path / "a.sqlite")
    yield opened
    opened.close()


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**200,
    1.5,
    "",
    "text \x00 with NUL",
    "half \ud83d an emoji",
    b"",
    b"\x00\xff",
    [],
    {},
    {"b": [1, {"a": None}], "a": "order kept"},
]


@pytest.mark.parametrize("value", VALUES)
def test_every_json_value_and_bytes_come_back(storage: Storage, value: Any) -> None:
    storage.kv.put("key", value)
    read = storage.kv.get("key")
    assert read == value
    assert type(read) is type(value)
    if isinstance(value, dict):
        assert list(read) == list(value)


@pytest.mark.parametrize("key", ["a", "\x00", "a\x00b", "ключ", "🗝", "a" * 5000, " "])
def test_any_text_is_a_key(storage: Storage, key: str) -> None:
    storage.kv.put(key, 1)
    storage.kv.put(key, 2)
    assert storage.kv.list() == {key: 2}
    assert storage.kv.delete(key) is True
    assert storage.kv.delete(key) is False


def test_no_table_is_made_before_the_first_put(storage: Storage) -> None:
    assert storage.kv.get("a") is None
    assert storage.kv.get("a", default=3) == 3
    assert storage.kv.list() == {}
    assert storage.kv.delete("a") is False
    assert storage.kv.get_many(["a", "b"]) == {}
    storage.kv.put_many({})
    assert storage.data_tables() == ()
    storage.kv.put("a", 1)
    assert storage.data_tables() == ("sessions_actor_kv",)


def test_what_is_no_key_or_value_is_refused_and_nothing_written(storage: Storage) -> None:
    with pytest.raises(TypeError, match="a key is a string"):
        storage.kv.put(1, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not empty"):
        storage.kv.get("")
    with pytest.raises(ValueError, match="lone surrogate"):
        storage.kv.put("\ud800", 1)
    with pytest.raises(TypeError, match="the value of 'b'"):
        storage.kv.put_many({"a": 1, "b": {1, 2}})
    with pytest.raises(TypeError, match="nan"):
        storage.kv.put("a", [float("nan")])
    assert storage.kv.list() == {}


def test_a_put_that_is_undone_leaves_no_table(storage: Storage) -> None:
    def op() -> None:
        storage.kv.put("a", 1)
        assert storage.kv.get("a") == 1
        raise LookupError

    with pytest.raises(LookupError):
        storage.perform(op)
    assert storage.kv.get("a") is None
    storage.kv.put("a", 2)
    assert storage.kv.get("a") == 2


def test_bytes_of_any_kind_are_stored_as_bytes(storage: Storage) -> None:
    storage.kv.put_many({"a": bytearray(b"x"), "b": memoryview(b"y")})
    assert storage.kv.list() == {"a": b"x", "b": b"y"}


@pytest.fixture
def letters(storage: Storage) -> Storage:
    storage.kv.put_many({key: key for key in ["b", "a", "ab", "abc", "ac", "c"]})
    return storage


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, ["a", "ab", "abc", "ac", "b", "c"]),
        ({"reverse": True}, ["c", "b", "ac", "abc", "ab", "a"]),
        ({"prefix": "a"}, ["a", "ab", "abc", "ac"]),
        ({"prefix": "ab", "reverse": True}, ["abc", "ab"]),
        ({"start": "ab"}, ["ab", "abc", "ac", "b", "c"]),
        ({"start_after": "ab"}, ["abc", "ac", "b", "c"]),
        ({"end": "b"}, ["a", "ab", "abc", "ac"]),
        ({"start": "ab", "end": "ac"}, ["ab", "abc"]),
        ({"start": "", "end": ""}, []),
        ({"limit": 2}, ["a", "ab"]),
        ({"limit": 2, "reverse": True}, ["c", "b"]),
        ({"limit": 0}, []),
        ({"prefix": "a", "start_after": "ab", "limit": 1}, ["abc"]),
        ({"prefix": "z"}, []),
    ],
)
def test_list(letters: Storage, options: dict[str, Any], keys: list[str]) -> None:
    found = letters.kv.list(**options)
    assert list(found) == keys
    assert found == {key: key for key in keys}


def test_keys_are_ordered_by_utf8_and_prefixes_end_where_they_should(storage: Storage) -> None:
    keys = ["z", "é", "\ud7ff", "\ud7ffx", "\ue000", "\uffff", "𐀀", "\U0010ffff", "\U0010ffffx"]
    storage.kv.put_many({key: 1 for key in reversed(keys)})
    assert list(storage.kv.list()) == keys == sorted(keys, key=str.encode)
    for prefix in {*keys, "\U0010ffff" * 2, "x\U0010ffff"}:
        assert list(storage.kv.list(prefix=prefix)) == [k for k in keys if k.startswith(prefix)]


def test_list_refuses_contradictions(storage: Storage) -> None:
    with pytest.raises(ValueError, match="not both"):
        storage.kv.list(start="a", start_after="b")
    with pytest.raises(ValueError, match="limit"):
        storage.kv.list(limit=-1)


async def test_the_awaited_methods_take_one_or_several(storage: Storage) -> None:
    await storage.put("a", 1)
    await storage.put({"b": [2], "c": b"3"})
    assert await storage.get("a") == 1
    assert await storage.get("nothing") is None
    assert await storage.get(["c", "a", "nothing"]) == {"a": 1, "c": b"3"}
    assert await storage.list(prefix="b") == {"b": [2]}
    assert await storage.delete("a") is True
    assert await storage.delete(["a", "b", "c", "c"]) == 2
    assert await storage.list() == {}


async def test_put_returns_when_durable(storage: Storage) -> None:
    await storage.put("a", 1)
    other = apsw.Connection(storage.path, flags=apsw.SQLITE_OPEN_READONLY)
    assert list(other.execute("SELECT key, value FROM sessions_actor_kv")) == [("a", "1")]
    other.close()
