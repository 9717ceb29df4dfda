"""The scenario format: one conversation per file, one JSON step per line.

A scenario is ``scenarios/<name>.jsonl``. Its steps run in order on one fresh conversation:

    {"op": ..., "args": [...], "session": "...", "expect": {"ok": ...} or {"error": "..."}}

and may also carry

    "note"      what the step shows, for the reader
    "why"       why the expected answer differs from the one the reference gives
    "save"      {"NAME": "/ok/id"}: remember the value at that JSON pointer of the answer; later
                "{{NAME}}" stands for it inside any string of "args" and "expect"
    "relative"  {"/ok/0/n": "NAME"}: the number there is compared after NAME is subtracted

Inside "args" an object with one of these keys alone is a generator, which keeps megabytes out of
the files:

    {"$repeat": ["text", n]}                  the text n times
    {"$join": [a, b, ...]}                    strings (or generators) joined
    {"$base64": {"bytes": n, "seed": "s"}}    base64 of n bytes: SHA-256 of "s:0", "s:1", ... joined
    {"$each": {"count": n, "item": X}}        n copies of X, "{i}" in its strings replaced by the
                                              index ("start": first index; "pad": width in zeros)
    {"$nest": [depth, leaf]}                  leaf inside that many one-item lists

Inside "expect":

    "<any>"                                   any value; in a longer string, any run of characters
    {"$string": {"sha256", "bytes", "utf16"}} a string above 2,000 UTF-16 units, by its UTF-8
    {"$list": {"sha256", "length", "first", "last"}}  a list above 150 items, by sorted-key JSON

An error is ``"Class: text"``, most often ``"Class: <any>"``. Key order counts everywhere.

This module only reads, expands and compares. It runs nothing and opens no conversation.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ANY = "<any>"
LONG_STRING_UNITS = 2_000
LONG_LIST_ITEMS = 150
SCENARIOS = Path(__file__).parent / "scenarios"
STEP_KEYS = ("note", "op", "args", "session", "save", "relative", "why", "expect")

Answer = dict[str, Any]


class Adapter(Protocol):
    """One fresh conversation of an implementation under test."""

    async def call(self, op: str, args: list[Any], session: str) -> Answer:
        """Run one operation: ``{"ok": value}`` or ``{"error": "Class: text"}``."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place of one step where the answer is not the expected one."""

    step: int
    op: str
    where: str
    want: Any
    got: Any

    def __str__(self) -> str:
        want, got = (json.dumps(value)[:400] for value in (self.want, self.got))
        return f"step {self.step} {self.op} at {self.where or '/'}\n  want {want}\n  got  {got}"


@dataclass(slots=True)
class Step:
    """One line of a scenario."""

    op: str
    args: list[Any]
    session: str = ""
    expect: Answer = field(default_factory=dict)
    note: str | None = None
    why: str | None = None
    save: dict[str, str] = field(default_factory=dict)
    relative: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """Write the step as its line: compact ASCII JSON, keys in the order of the format."""
        row = {key: getattr(self, key) for key in STEP_KEYS}
        kept = {k: v for k, v in row.items() if v or k in {"op", "args", "session", "expect"}}
        return json.dumps(kept, separators=(",", ":"))


def load(path: Path) -> list[Step]:
    """Read a scenario."""
    with path.open(encoding="utf-8") as lines:
        return [Step(**json.loads(line)) for line in lines if line.strip()]


def dump(path: Path, steps: Iterable[Step]) -> None:
    """Write a scenario."""
    path.write_text("".join(step.line() + "\n" for step in steps), encoding="ascii")


def names(directory: Path = SCENARIOS) -> list[str]:
    """Name every scenario, sorted."""
    return sorted(path.stem for path in directory.glob("*.jsonl"))


async def replay(steps: Iterable[Step], adapter: Adapter) -> list[Mismatch]:
    """Run the steps in order and return every mismatch; a mismatch does not end the run."""
    saved: dict[str, Any] = {}
    found = []
    for number, step in enumerate(steps, 1):
        before = dict(saved)
        got = await answer(step, adapter, saved)
        found += [
            Mismatch(number, step.op, *item) for item in differences(step.expect, got, before)
        ]
    return found


async def answer(step: Step, adapter: Adapter, saved: dict[str, Any]) -> Answer:
    """Run one step: its answer as the files write it, "relative" applied and "save" stored."""
    raw = await adapter.call(step.op, expand(step.args, saved), step.session)
    compact: Answer = normalize(raw)
    for pointer, name in step.relative.items():
        box, key = locate(compact, pointer)
        box[key] -= saved[name]
    for name, pointer in step.save.items():
        box, key = locate(raw, pointer)
        saved[name] = box[key]
    return compact


# ------------------------------------------------------------------------------------ arguments
def noise(count: int, seed: str) -> bytes:
    """Make ``count`` bytes that look random and are the same everywhere."""
    blocks = (hashlib.sha256(f"{seed}:{k}".encode()).digest() for k in range(count // 32 + 1))
    return b"".join(blocks)[:count]


def expand(value: Any, saved: Mapping[str, Any]) -> Any:
    """Replace generators and ``{{NAME}}`` by what they stand for."""
    if isinstance(value, str):
        if "{{" not in value:
            return value
        return re.sub(r"\{\{(\w+)\}\}", lambda match: str(saved[match[1]]), value)
    if isinstance(value, list):
        return [expand(item, saved) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, spec),) = value.items()
        if key in GENERATORS:
            return GENERATORS[key](spec, saved)
    return {key: expand(item, saved) for key, item in value.items()}


def _repeat(spec: Any, saved: Mapping[str, Any]) -> str:
    text: str = expand(spec[0], saved)
    return text * int(spec[1])


def _join(spec: Any, saved: Mapping[str, Any]) -> str:
    return "".join(expand(item, saved) for item in spec)


def _base64(spec: Any, saved: Mapping[str, Any]) -> str:
    return base64.b64encode(noise(spec["bytes"], spec["seed"])).decode("ascii")


def _nest(spec: Any, saved: Mapping[str, Any]) -> Any:
    leaf = expand(spec[1], saved)
    for _ in range(spec[0]):
        leaf = [leaf]
    return leaf


def _each(spec: Any, saved: Mapping[str, Any]) -> list[Any]:
    start, pad = spec.get("start", 0), spec.get("pad", 0)
    indices = (str(i).zfill(pad) for i in range(start, start + spec["count"]))
    return [expand(_indexed(spec["item"], i), saved) for i in indices]


GENERATORS = {
    "$repeat": _repeat,
    "$join": _join,
    "$base64": _base64,
    "$nest": _nest,
    "$each": _each,
}


def _indexed(value: Any, i: str) -> Any:
    if isinstance(value, str):
        return value.replace("{i}", i)
    if isinstance(value, list):
        return [_indexed(item, i) for item in value]
    if isinstance(value, dict):
        return {key: _indexed(item, i) for key, item in value.items()}
    return value


# -------------------------------------------------------------------------------------- answers
def normalize(value: Any) -> Any:
    """Write an answer as the files do: whole floats as integers, long values digested."""
    if isinstance(value, str):
        return _normal_string(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    if isinstance(value, dict):
        return {key: normalize(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _normal_list([normalize(item) for item in value])
    return value


def _normal_string(text: str) -> Any:
    units = len(text) + sum(char > "\uffff" for char in text)
    if units <= LONG_STRING_UNITS:
        return text
    data = text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()
    return {"$string": {"sha256": digest, "bytes": len(data), "utf16": units}}


def _normal_list(items: list[Any]) -> Any:
    if len(items) <= LONG_LIST_ITEMS:
        return items
    text = json.dumps(items, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()
    ends = {"first": items[0], "last": items[-1]}
    return {"$list": {"sha256": digest, "length": len(items), **ends}}


def locate(value: Any, pointer: str) -> tuple[Any, Any]:
    """Find a JSON pointer: its container and the key or index in it."""
    *path, last = pointer.lstrip("/").split("/")
    for part in path:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value, int(last) if isinstance(value, list) else last


def differences(
    want: Any, got: Any, saved: Mapping[str, Any], path: str = ""
) -> list[tuple[str, Any, Any]]:
    """List (path, wanted, got) wherever ``got`` is not what ``want`` says.

    The order of keys counts: it is reported as path + "#order" when nothing else differs there.
    """
    if want == ANY:
        return []
    if isinstance(want, str):
        want = expand(want, saved)
        if isinstance(got, str) and ANY in want:
            pattern = ".*".join(re.escape(part) for part in want.split(ANY))
            return [] if re.fullmatch(pattern, got, re.S) else [(path, want, got)]
    if isinstance(want, dict) and isinstance(got, dict):
        found = list(_dict_differences(want, got, saved, path))
        if not found and list(want) != list(got):
            found.append((path + "#order", list(want), list(got)))
        return found
    if isinstance(want, list) and isinstance(got, list):
        if len(want) != len(got):
            return [(path + "#length", want, got)]
        pairs = enumerate(zip(want, got, strict=True))
        return [d for i, (w, g) in pairs for d in differences(w, g, saved, f"{path}/{i}")]
    if isinstance(want, bool) != isinstance(got, bool) or want != got:
        return [(path, want, got)]
    return []


def _dict_differences(
    want: dict[str, Any], got: dict[str, Any], saved: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any, Any]]:
    for key in {**want, **got}:
        here = f"{path}/{key}"
        if key in want and key in got:
            yield from differences(want[key], got[key], saved, here)
        else:
            yield here, want.get(key, "(absent)"), got.get(key, "(absent)")
