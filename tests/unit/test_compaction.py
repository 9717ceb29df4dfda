"""What is summarised, with which prompt, and where the boundaries fall."""

from typing import Any

import pytest

from sessions_actor.compaction import create_compact_function
from sessions_actor.records import CompactResult


def text(id_: str, words: str | None = None, role: str = "user") -> Any:
    part = {"type": "text", "text": f"text of {id_}" if words is None else words}
    return {"id": id_, "role": role, "parts": [part]}


def call(id_: str, *call_ids: str, role: str = "assistant") -> Any:
    parts = [
        {"type": "tool-get", "toolCallId": c, "state": "input-available", "input": {"q": c}}
        for c in call_ids
    ]
    return {"id": id_, "role": role, "parts": parts}


def result(id_: str, *call_ids: str, role: str = "tool") -> Any:
    parts = [
        {"type": "tool-get", "toolCallId": c, "state": "output-available", "output": f"r{c}"}
        for c in call_ids
    ]
    return {"id": id_, "role": role, "parts": parts}


def summary(id_: str, words: str) -> Any:
    return {
        **text(f"compaction_{id_}", words, "assistant"),
        "createdAt": "2024-01-01T00:00:00.000Z",
    }


def texts(*ids: str) -> list[Any]:
    return [text(id_) for id_ in ids]


async def run(
    messages: list[Any], keep: float = 1, answer: Any = "S"
) -> tuple[tuple[str, str] | None, str | None]:
    """Compact; return the range and the prompt."""
    prompts: list[str] = []

    async def summarize(prompt: str) -> Any:
        prompts.append(prompt)
        return answer

    found = await create_compact_function(summarize=summarize, keep_recent_tokens=keep)(messages)
    assert len(prompts) <= 1
    ends = None if found is None else (found.from_message_id, found.to_message_id)
    return ends, prompts[0] if prompts else None


EIGHT = texts(*"abcdefgh")


async def test_three_at_the_head_and_two_at_the_tail_stay() -> None:
    assert (await run(EIGHT))[0] == ("d", "f")
    assert (await run(EIGHT[:6]))[0] == ("d", "d")


@pytest.mark.parametrize("count", range(6))
async def test_five_messages_are_left_alone(count: int) -> None:
    assert await run(EIGHT[:count]) == (None, None)


@pytest.mark.parametrize(
    ("keep", "last"), [(0, "f"), (23, "f"), (24, "e"), (31, "e"), (32, "d"), (39, "d")]
)
async def test_the_tail_grows_while_it_fits(keep: float, last: str) -> None:
    assert (await run(EIGHT, keep))[0] == ("d", last)  # each message weighs 8


async def test_a_budget_for_everything_leaves_nothing_to_do() -> None:
    assert await run(EIGHT, 20_000) == (None, None)
    function = create_compact_function(summarize=lambda prompt: "S")
    assert await function(EIGHT) is None


async def test_a_summariser_may_answer_at_once() -> None:
    function = create_compact_function(summarize=lambda prompt: "S", keep_recent_tokens=1)
    assert await function(EIGHT) == CompactResult("S", "d", "f")


@pytest.mark.parametrize("answer", ["", "  \n", "\ufeff\u3000"])
async def test_a_blank_summary_is_none(answer: str) -> None:
    assert (await run(EIGHT, answer=answer))[0] is None


async def test_a_summary_that_is_no_text_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="summarize returned NoneType, not text"):
        await run(EIGHT, answer=None)


async def test_what_the_summariser_raises_passes() -> None:
    def summarize(prompt: str) -> str:
        raise LookupError("no model")

    with pytest.raises(LookupError):
        await create_compact_function(summarize=summarize, keep_recent_tokens=1)(EIGHT)


# ------------------------------------------------------------------------------- calls and results


@pytest.mark.parametrize(
    ("messages", "ends"),
    [
        # the boundary after the head
        ([*texts("a", "b"), call("c", "1"), result("r", "1"), *texts(*"efgh")], ("e", "f")),
        (
            [*texts(*"ab"), call("c", *"12"), result("r", "1"), result("s", "2"), *texts(*"fgh")],
            ("f", "f"),
        ),
        (  # whoever made the call
            [*texts("a", "b"), call("c", "1", role="user"), result("r", "1"), *texts(*"efgh")],
            ("e", "f"),
        ),
        (  # results that stand further on
            [*texts("a", "b"), call("c", "1"), *texts("d"), result("r", "1"), *texts(*"efgh")],
            ("e", "f"),
        ),
        (  # three calls at once, one without a result
            [*texts(*"ab"), call("c", *"123"), result("r", "1"), result("s", "3"), *texts(*"fgh")],
            ("f", "f"),
        ),
        # the boundary before the tail
        ([*texts(*"abcde"), call("c", "1"), result("r", "1"), *texts("h")], ("d", "e")),
        ([*texts(*"abcd"), call("c", "1"), *texts("x"), result("r", "1"), *texts("h")], ("d", "d")),
        ([*texts(*"abcde"), call("c", "1"), result("r", "9"), *texts("h")], ("d", "c")),
        (  # one call leads to another
            [*texts(*"abcd"), call("c", "1"), call("k", "2"), result("r", "1"), result("s", "2")],
            ("d", "d"),
        ),
        # nothing is left between
        ([*texts("a", "b"), call("c", "1"), result("r", "1"), *texts("e", "f")], None),
        ([*texts("a", "b"), call("c", "1"), *texts(*"defgh"), result("r", "1")], None),
    ],
)  # fmt: skip
async def test_calls_stay_with_their_results(messages: list[Any], ends: Any) -> None:
    assert (await run(messages))[0] == ends


async def test_an_id_used_again_is_another_call() -> None:
    pairs = [m for turn in "abcdef" for m in (call(f"{turn}1", "1"), result(f"{turn}2", "1"))]
    assert (await run(pairs))[0] == ("c1", "e2")
    whole = [
        {"id": turn, "role": "assistant", "parts": [{**call("", "1")["parts"][0], "output": 1}]}
        for turn in "abcdefgh"
    ]
    assert (await run(whole))[0] == ("d", "f")


async def test_odd_call_ids_are_ignored() -> None:
    part = {"type": "tool-x", "toolCallId": ["x"]}
    odd = [{"id": id_, "role": "user", "parts": [part, None, {}]} for id_ in "abcdefgh"]
    assert (await run(odd))[0] == ("d", "f")


# ------------------------------------------------------------------------------ earlier summaries


async def test_an_earlier_summary_is_carried_on() -> None:
    ends, prompt = await run([*texts(*"abc"), summary("1", "OLD"), *texts(*"defg")])
    assert ends == ("d", "e")
    assert prompt is not None
    assert prompt.startswith("You are updating a conversation summary.")
    assert (
        "\nPREVIOUS SUMMARY:\nOLD\n\nNEW TURNS TO INCORPORATE:\n[user]\ntext of d\n\n---" in prompt
    )


async def test_all_earlier_summaries_are_carried_on_in_order() -> None:
    view = [*texts(*"abc"), summary("1", "ONE"), text("d"), summary("2", "TWO"), *texts(*"efg")]
    ends, prompt = await run(view)
    assert ends == ("d", "e")
    assert prompt is not None
    assert "\nPREVIOUS SUMMARY:\nONE\n\nTWO\n\nNEW" in prompt
    assert "text of d" in prompt
    assert "text of e" in prompt


async def test_with_nothing_new_no_model_is_asked() -> None:
    assert await run([*texts(*"abc"), summary("1", "OLD"), *texts("d", "e")]) == (None, None)
    assert await run([*texts(*"abc"), summary("1", "A"), summary("2", "B"), *texts("d", "e")]) == (
        None,
        None,
    )


async def test_a_summary_in_the_head_brings_what_follows_it_into_the_prompt() -> None:
    ends, prompt = await run([summary("1", "OLD"), *texts(*"abcdefg")])
    assert ends == ("c", "e")
    assert prompt is not None
    assert "OLD" in prompt
    for id_ in "abcde":
        assert f"text of {id_}" in prompt


async def test_a_summary_behind_the_range_is_not_hidden_nor_told() -> None:
    ends, prompt = await run([*texts(*"abcde"), summary("1", "LATER"), *texts("f", "g")])
    assert ends == ("d", "e")
    assert prompt is not None
    assert prompt.startswith("Create a concise summary")
    assert "LATER" not in prompt


async def test_an_empty_earlier_summary_is_none() -> None:
    _, prompt = await run([*texts(*"abc"), summary("1", ""), *texts(*"defg")])
    assert prompt is not None
    assert prompt.startswith("Create a concise summary")


# ------------------------------------------------------------------------------------- the prompt

SHAPE = """\
Create a concise summary of this conversation that preserves the important information for future context.

CONVERSATION TO SUMMARIZE:
[assistant]
line1
line2
[Tool: unknown]
Input: {"city":"Paris"}
Output: {"t":20}
[Tool: dyn]
Input: "str"
Output: []

---

[user]


Use this structure:

## Topic
[What the conversation is about]

## Key Points
[Important information, decisions, and conclusions from the conversation]

## Current State
[Where things stand now — what has been done, what is in progress]

## Open Items
[Unresolved questions, pending tasks, or next steps discussed]

Target ~100 tokens. Be factual — only include information that was explicitly discussed in the \
conversation. Do NOT invent file paths, commands, or details that were not mentioned. Write only \
the summary body."""  # noqa: E501


async def test_prompt() -> None:
    parts = [
        {"type": "text", "text": "line1"},
        {"type": "reasoning", "text": "secret thought"},
        {"type": "text", "text": "line2"},
        {
            "type": "tool-weather",
            "toolCallId": "1",
            "input": {"city": "Paris"},
            "output": {"t": 20},
        },
        {
            "type": "dynamic-tool",
            "toolName": "dyn",
            "toolCallId": "2",
            "input": "str",
            "output": [],
        },
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,eA=="},
    ]
    middle = [
        {"id": "t", "role": "assistant", "parts": parts},
        {"id": "e", "role": "user", "parts": []},
    ]
    ends, prompt = await run([*texts(*"abc"), *middle, *texts("y", "z")])
    assert ends == ("t", "e")
    assert prompt == SHAPE


@pytest.mark.parametrize("value", [0, 0.0, False, None, ""])
async def test_false_inputs_are_left_out(value: Any) -> None:
    part = {"type": "tool-x", "input": value, "output": value}
    _, prompt = await run(
        [*texts(*"abc"), {"id": "d", "role": "user", "parts": [part]}, *texts("y", "z")]
    )
    assert prompt is not None
    assert "[Tool: unknown]\n\nUse this structure" in prompt


async def test_tool_json_is_cut_at_500_utf16_units() -> None:
    for value, kept in (("z" * 600, '"' + "z" * 499), ("💥" * 300, '"' + "💥" * 249)):
        part = {"type": "tool-x", "output": value}
        _, prompt = await run(
            [*texts(*"abc"), {"id": "d", "role": "user", "parts": [part]}, *texts("y", "z")]
        )
        assert prompt is not None
        assert f"Output: {kept}\n" in prompt


async def test_the_target_is_a_fifth_of_what_is_summarised() -> None:
    view = [*texts(*"abc"), text("d", "word " * 1000), *texts("y", "z")]
    _, prompt = await run(view)
    assert prompt is not None
    assert "Target ~260 tokens." in prompt  # (4 + ceil(1000 x 1.3)) / 5


async def test_any_client_can_send_the_prompt() -> None:
    _, prompt = await run([*texts(*"abc"), text("d", "half \ud83d of it"), *texts("y", "z")])
    assert prompt is not None
    assert "half \ufffd of it" in prompt
    prompt.encode()
