"""What compaction chooses keeps its promises on every path."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessions_actor.compaction import create_compact_function
from sessions_actor.records import CompactResult
from sessions_actor.tokens import estimate_content

from .json_values import law

_calls = st.fixed_dictionaries(
    {"type": st.sampled_from(("tool-x", "dynamic-tool")), "toolCallId": st.sampled_from("pqrst")},
    optional={"output": st.just("done")},
)
_texts = st.builds(lambda words: {"type": "text", "text": "word " * words}, st.integers(0, 12))
_kinds = st.one_of(st.just("summary"), st.lists(st.one_of(_texts, _calls), max_size=2), st.just([]))


def _message(number: int, kind: Any) -> Any:
    if kind == "summary":
        summary = [{"type": "text", "text": f"<summary {number}>"}]
        return {"id": f"compaction_{number}", "role": "assistant", "parts": summary}
    marker = {"type": "text", "text": f"<message {number}>"}
    return {"id": f"m{number}", "role": "user", "parts": [marker, *kind]}


paths = st.lists(_kinds, max_size=14).map(
    lambda kinds: [_message(number, kind) for number, kind in enumerate(kinds)]
)


def compact(messages: list[Any], keep: int) -> tuple[CompactResult | None, list[str]]:
    prompts: list[str] = []

    def summarize(prompt: str) -> str:
        prompts.append(prompt)
        return "S"

    function = create_compact_function(summarize=summarize, keep_recent_tokens=keep)
    return asyncio.run(function(messages)), prompts


def call_ids(messages: list[Any]) -> set[str]:
    return {part["toolCallId"] for m in messages for part in m["parts"] if "toolCallId" in part}


def parted(messages: list[Any], boundary: int) -> bool:
    return not call_ids(messages[:boundary]).isdisjoint(call_ids(messages[boundary:]))


def slow_range(messages: list[Any], keep: int) -> tuple[int, int] | None:
    """Try boundaries one by one."""
    if len(messages) <= 5:
        return None
    start = next(b for b in range(3, len(messages) + 1) if not parted(messages, b))
    sizes = [estimate_content(message) for message in messages]
    fits = [b for b in range(start, len(messages)) if sum(sizes[b:]) <= keep]
    end = min([*fits, len(messages) - 1, len(messages)][0], len(messages) - 2)
    while end > start and parted(messages, end):
        end -= 1
    raw = [i for i in range(start, end) if not messages[i]["id"].startswith("compaction_")]
    return (raw[0], raw[-1]) if raw else None


@law
@given(paths, st.integers(0, 80))
def test_range(messages: list[Any], keep: int) -> None:
    result, prompts = compact(messages, keep)
    expected = slow_range(messages, keep)
    if expected is None:
        assert result is None
        assert prompts == []  # no model is asked in vain
        return
    assert result is not None
    first, last = expected
    assert (result.from_message_id, result.to_message_id) == (f"m{first}", f"m{last}")


@law
@given(paths, st.integers(0, 80))
def test_everything_hidden_is_in_the_prompt(messages: list[Any], keep: int) -> None:
    result, prompts = compact(messages, keep)
    if result is None:
        return
    (prompt,) = prompts
    ids = [message["id"] for message in messages]
    start, end = ids.index(result.from_message_id), ids.index(result.to_message_id)
    # The session begins the overlay where the first earlier one begins.
    earlier = [i for i in range(end) if ids[i].startswith("compaction_")]
    for message in messages[min([start, *earlier]) : end + 1]:
        assert message["parts"][0]["text"] in prompt
    for message in messages[end + 1 :]:
        assert message["parts"][0]["text"] not in prompt
