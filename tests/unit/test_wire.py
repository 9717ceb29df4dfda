"""How calls cross: arguments, results, errors, windows, events."""

import pickle
from typing import Any

import pytest

from sessions_actor import wire
from sessions_actor.errors import ERRORS, QuotaExceededError, RemoteCallError
from sessions_actor.records import (
    LEAF,
    AppendResult,
    ChangeEvent,
    Compaction,
    CompactResult,
    RowStat,
    SearchResult,
)
from sessions_actor.wire import Answer, Part, ResultKind, Window

OVERLAY = Compaction("c1", "sum", "a", "b", "2026-01-01T00:00:00.000Z")


def test_frames() -> None:
    parts = [Part("", "append_message", b"[]"), Part("s", "compact", b"\0\xff", again=True)]
    assert wire.unpack_request(wire.pack_request("a", 7, parts)) == ("a", 7, parts)
    answers = [Answer(wire.OK, b"1"), Answer(wire.ERROR, b"e"), Answer(wire.WAITING, b"3")]
    assert wire.unpack_reply(wire.pack_reply(answers)) == answers


def test_arguments() -> None:
    message = {"id": "é", "n": 2**90, "half": "\ud83d", "none": None}
    data = wire.dump_args([message, None], {"parent_id": None}, ["message", "x"])
    assert wire.load_args(data) == ([message, None], {"parent_id": None})
    assert wire.load_args(wire.dump_args([], {}, [])) == ([], {})
    with pytest.raises(TypeError, match=r"^message\.parts\[1\]\.output: float nan"):
        wire.dump_args([{"parts": [1, {"output": float("nan")}]}], {}, ["message"])
    with pytest.raises(TypeError, match=r"^parent_id: "):
        wire.dump_args([{}], {"parent_id": {1, 2}}, ["message"])


def test_calls_take_anything_that_pickles() -> None:
    method, args, kwargs = wire.load_call(wire.dump_call("m", (1, {2}), {"f": lambda x: x + 1}))
    assert (method, args) == ("m", (1, {2}))
    assert kwargs["f"](1) == 2


def test_a_message_that_is_the_one_given_comes_back_as_it() -> None:
    given = {"id": "m"}
    other = {"id": "m", "stored": True}
    for kind, result in [
        (ResultKind.APPEND, AppendResult(True, given)),
        (ResultKind.APPEND, AppendResult(False, other)),
        (ResultKind.UPDATE, given),
        (ResultKind.UPDATE, other),
        (ResultKind.UPDATE, None),
    ]:
        back = wire.load_result(kind, wire.dump_result(kind, result, given), given)
        assert back == result
        if result in (given, AppendResult(True, given)):
            assert (back.message if isinstance(back, AppendResult) else back) is given
    many = [AppendResult(True, given), AppendResult(False, other)]
    messages = [given, {"id": "m"}]
    data = wire.dump_result(ResultKind.APPENDS, many, messages)
    back = wire.load_result(ResultKind.APPENDS, data, messages)
    assert back == many
    assert back[0].message is given


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (ResultKind.JSON, [{"a": None}, 1.5, 2**70]),
        (ResultKind.JSON, None),
        (ResultKind.ROW_STATS, [RowStat("a", "user", 10, 3)]),
        (ResultKind.SEARCH, [SearchResult("a", "user", "text")]),
        (ResultKind.COMPACT, CompactResult("s", "a", "b")),
        (ResultKind.COMPACT, None),
        (ResultKind.COMPACTION, OVERLAY),
        (ResultKind.COMPACTIONS, [OVERLAY, OVERLAY]),
        (ResultKind.BYTES, b"\0\xff"),
        (ResultKind.PICKLE, {1, 2}),
    ],
)
def test_results(kind: ResultKind, result: Any) -> None:
    assert wire.load_result(kind, wire.dump_result(kind, result)) == result


def test_every_method_has_a_kind_of_result_that_is_tested() -> None:
    assert {method.result for method in wire.METHODS.values()} <= set(ResultKind)


def test_windows() -> None:
    texts = [b'{"id":"a,]["}', b"[1,2]", "「」".encode().join([b'"', b'"'])]
    window = Window(texts, {"after": ["x"]}, [[None, 1, 2]] * 3)
    loaded = wire.load_window(wire.dump_window(window))
    assert loaded.split() == texts
    assert (loaded.cursor, loaded.facts) == (window.cursor, window.facts)
    empty = wire.load_window(wire.dump_window(Window([], None)))
    assert (empty.split(), empty.texts, empty.cursor) == ([], b"[]", None)


@pytest.mark.parametrize(
    "event",
    [
        ChangeEvent("append", "", message={"id": "a"}, parent_id=LEAF, inserted=True),
        ChangeEvent("append", "s", message={"id": "a"}, parent_id=None, inserted=False),
        ChangeEvent("import", "s", message={"id": "a"}, parent_id="p"),
        ChangeEvent("clear", "s"),
        ChangeEvent("compaction", "", compaction=OVERLAY),
    ],
)
def test_events(event: ChangeEvent) -> None:
    assert wire.load_event(wire.dump_event(event)) == event


def test_ids_of_a_deletion_come_back_as_given() -> None:
    event = wire.load_event(wire.dump_event(ChangeEvent("delete", "", message_ids=["a", "b"])))
    assert list(event.message_ids or ()) == ["a", "b"]


class KeywordOnlyError(Exception):
    """Does not survive pickling."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class HoldsALockError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("held")
        self.held = (i for i in range(3))


class NoTextError(Exception):
    """Cannot even be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_errors_that_pickle_come_back_as_they_are() -> None:
    for error in (
        ValueError("message.id: a string is required"),
        KeyError("x"),
        QuotaExceededError(5, 4, "/f"),
    ):
        back = wire.load_error(wire.dump_error(error))
        assert type(back) is type(error)
        assert back.args == error.args
    assert all(issubclass(error, Exception) for error in ERRORS)


@pytest.mark.parametrize("error", [KeywordOnlyError(code=7), HoldsALockError(), NoTextError()])
def test_errors_that_do_not_pickle_come_back_by_name(error: Exception) -> None:
    back = wire.load_error(wire.dump_error(error))
    assert isinstance(back, RemoteCallError)
    assert back.type_name.endswith(type(error).__name__)


def test_the_class_of_an_error_may_be_missing_where_it_arrives() -> None:
    data = pickle.dumps(("gone.Error", "text", b"cgone\nError\n."), 5)
    back = wire.load_error(data)
    assert isinstance(back, RemoteCallError)
    assert (back.type_name, back.detail) == ("gone.Error", "text")


def test_an_error_of_the_hosts_own_code_says_where_it_was_raised() -> None:
    try:
        raise LookupError("x")
    except LookupError as error:
        back = wire.load_error(wire.dump_error(error))
    assert "test_wire.py" in "".join(back.__notes__)
