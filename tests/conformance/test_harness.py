"""The scenario format itself: generators, digests, comparison, and our copies of the recordings."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import scenario
from tests.conformance.operations import OPERATIONS
from tests.conformance.scenario import Answer, Step

NAMES = scenario.names()


class Scripted:
    """An adapter that gives prepared answers and notes what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, list[Any], str]] = []

    async def call(self, op: str, args: list[Any], session: str) -> Answer:
        """Give the next answer."""
        self.asked.append((op, args, session))
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("generator", "value"),
    [
        ({"$repeat": ["ab", 3]}, "ababab"),
        ({"$join": ["a", {"$repeat": ["b", 2]}, "c"]}, "abbc"),
        ({"$nest": [2, {"k": 1}]}, [[{"k": 1}]]),
        ({"$each": {"count": 2, "item": ["m{i}", 7]}}, [["m0", 7], ["m1", 7]]),
        ({"$each": {"count": 2, "start": 9, "pad": 2, "item": "{i}"}}, ["09", "10"]),
        ({"$repeat": ["ab", 3], "other": 1}, {"$repeat": ["ab", 3], "other": 1}),
        (["{{A}}-{{B}}", {"k": "{{A}}"}], ["1-two", {"k": "1"}]),
    ],
)
def test_generators_expand(generator: Any, value: Any) -> None:
    assert scenario.expand(generator, {"A": 1, "B": "two"}) == value


def test_base64_generator_is_deterministic_noise() -> None:
    text = scenario.expand({"$base64": {"bytes": 40, "seed": "s"}}, {})
    blocks = hashlib.sha256(b"s:0").digest() + hashlib.sha256(b"s:1").digest()
    assert base64.b64decode(text) == blocks[:40]


def test_long_values_are_digested() -> None:
    text = "\U0001f4a5\ud800" + "x" * 2000
    data = text.encode("utf-8", "surrogatepass")
    digest = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": 2007, "utf16": 2003}
    assert scenario.normalize([text]) == [{"$string": digest}]
    items = scenario.normalize(list(range(151)))
    assert items["$list"]["length"] == 151
    assert (items["$list"]["first"], items["$list"]["last"]) == (0, 150)
    assert scenario.normalize([1.0, 1.5, True]) == [1, 1.5, True]


@pytest.mark.parametrize(
    ("want", "got", "places"),
    [
        ("<any>", {"a": 1}, []),
        ("TypeError: <any>", "TypeError: text\nof any kind", []),
        ("TypeError: <any>", "ValueError: text", [""]),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["#order"]),
        ({"a": 1}, {"a": 1, "b": 2}, ["/b"]),
        ({"a": 1, "b": 2}, {"a": 2}, ["/a", "/b"]),
        ([1, 2], [1], ["#length"]),
        ([1, [2]], [1, [3]], ["/1/0"]),
        (1, True, [""]),
        (0, False, [""]),
        ("x{{N}}", "x7", []),
        (None, None, []),
    ],
)
def test_differences(want: Any, got: Any, places: list[str]) -> None:
    found = scenario.differences(want, got, {"N": 7})
    assert [place for place, _, _ in found] == places


@pytest.mark.asyncio
async def test_replay_saves_and_subtracts() -> None:
    steps = [
        Step("sql", ["SELECT 1"], save={"N": "/ok/0/n"}, expect={"ok": [{"n": "<any>"}]}),
        Step("sql", ["{{N}}"], save={"N": "/ok/0/n"}, relative={"/ok/0/n": "N"},
             expect={"ok": [{"n": 1}]}),
        Step("sql", ["{{N}}"], relative={"/ok/0/n": "N"}, expect={"ok": [{"n": 1}]}),
    ]  # fmt: skip
    adapter = Scripted({"ok": [{"n": 5}]}, {"ok": [{"n": 6}]}, {"ok": [{"n": 9}]})
    mismatches = await scenario.replay(steps, adapter)
    assert [args for _, args, _ in adapter.asked] == [["SELECT 1"], ["5"], ["6"]]
    assert [(m.step, m.where, m.want, m.got) for m in mismatches] == [(3, "/ok/0/n", 1, 3)]


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_is_in_its_canonical_form(name: str) -> None:
    path = scenario.SCENARIOS / f"{name}.jsonl"
    steps = scenario.load(path)
    assert path.read_text(encoding="ascii") == "".join(step.line() + "\n" for step in steps)
    assert all(step.op in OPERATIONS for step in steps)
    assert all(set(step.expect) in ({"ok"}, {"error"}) for step in steps)


def test_every_step_that_differs_from_the_recording_says_why(shared: Path) -> None:
    recorded = sorted((shared / "conformance").glob("*.jsonl"))
    assert {path.stem for path in recorded} <= set(NAMES)
    for path in recorded:
        ours = scenario.load(scenario.SCENARIOS / path.name)
        theirs = scenario.load(path)
        assert len(ours) == len(theirs)
        for number, (mine, original) in enumerate(zip(ours, theirs, strict=True), 1):
            where = f"{path.stem}:{number}"
            assert (mine.op, mine.args, mine.session) == (
                original.op, original.args, original.session), where  # fmt: skip
            same = json.dumps(mine.expect) == json.dumps(original.expect)
            assert same == (mine.why is None), where
