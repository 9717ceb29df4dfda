"""The compaction function that comes with the package: what to summarise, and the prompt for it.

The conversation's opening and its recent tail stay verbatim; what lies between is summarised.
Two things hold whatever the conversation looks like: everything the new overlay will hide is in
its prompt, verbatim or as an earlier summary, and a tool's call stays with its results.

Pure but for the summariser it calls. Storing the overlay, and extending it to the start of an
earlier one, is the session's.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from .codec import dumps
from .messages import JS_SPACE, MessagePart, SessionMessage
from .overlays import COMPACTION_PREFIX
from .records import CompactResult
from .tokens import estimate_content, is_tool_part

KEEP_RECENT_TOKENS_DEFAULT = 20_000

_HEAD_MESSAGES = 3
_TAIL_MESSAGES_MIN = 2
_SUMMARY_TOKENS_MIN = 100
_SUMMARY_SHARE = 0.2
_TOOL_JSON_CHARACTERS_MAX = 500

assert _TAIL_MESSAGES_MIN >= 1

Summarize = Callable[[str], str | Awaitable[str]]
CompactFunction = Callable[[list[SessionMessage]], Coroutine[Any, Any, CompactResult | None]]


def create_compact_function(
    *, summarize: Summarize, keep_recent_tokens: float = KEEP_RECENT_TOKENS_DEFAULT
) -> CompactFunction:
    """Make a compaction function for `Session.on_compaction`.

    Args: `summarize` takes a prompt and returns the model's text, at once or awaited.
    `keep_recent_tokens` is the budget of the tail that stays verbatim.
    Returns: a function of a path, overlays applied, that returns the summary and the range of
    messages it stands for, or None when there is nothing new between head and tail or the summary
    is blank. It raises what `summarize` raises, and TypeError when that returns no text.
    Source: Overlays.
    """

    async def compact(messages: list[SessionMessage]) -> CompactResult | None:
        middle = _choose_range(messages, keep_recent_tokens)
        if middle is None:
            return None
        start, end = middle
        summary = summarize(_prompt_for(messages, start, end))
        if inspect.isawaitable(summary):
            summary = await summary
        if not isinstance(summary, str):
            raise TypeError(f"summarize returned {type(summary).__name__}, not text")
        if not summary.strip(JS_SPACE):
            return None
        return CompactResult(summary, messages[start]["id"], messages[end - 1]["id"])

    return compact


# ------------------------------------------------------------------------------------- the range


def _choose_range(
    messages: Sequence[SessionMessage], keep_recent_tokens: float
) -> tuple[int, int] | None:
    """Return where the middle starts and ends: it begins and ends with a message not a summary."""
    if len(messages) <= _HEAD_MESSAGES + _TAIL_MESSAGES_MIN:
        return None
    spans = _call_spans(messages)
    start = _align_forward(spans, _HEAD_MESSAGES)
    end = _align_backward(spans, _tail_start(messages, start, keep_recent_tokens))
    raw = [index for index in range(start, end) if not _is_summary(messages[index])]
    return (raw[0], raw[-1] + 1) if raw else None


def _tail_start(
    messages: Sequence[SessionMessage], head_end: int, keep_recent_tokens: float
) -> int:
    """Return where the longest tail within the budget starts; two messages are always in it."""
    tail = len(messages)
    tokens = 0
    while tail > head_end:
        tokens += estimate_content(messages[tail - 1])
        if tokens > keep_recent_tokens and tail < len(messages):
            break
        tail -= 1
    latest = len(messages) - _TAIL_MESSAGES_MIN
    return min(tail, latest) if latest >= head_end else tail


def _call_spans(messages: Sequence[SessionMessage]) -> list[tuple[int, int]]:
    """Return first and last index of every tool call that reaches over several messages.

    A part with an input opens a call; later parts of that id belong to it. Providers use ids
    again: an input that comes after the call was answered opens another.
    """
    spans: list[tuple[int, int]] = []
    open_calls: dict[Any, tuple[int, int, bool]] = {}
    for index, message in enumerate(messages):
        for part in _tool_parts(message):
            call_id = part.get("toolCallId")
            if not isinstance(call_id, (str, int, float)):
                continue
            first, last, answered = open_calls.get(call_id, (index, index, False))
            if answered and last < index and part.get("input") is not None:
                spans.append((first, last))
                first, answered = index, False
            open_calls[call_id] = (first, index, answered or _is_answer(part))
    spans += [(first, last) for first, last, _ in open_calls.values()]
    return sorted(span for span in spans if span[0] < span[1])


def _is_answer(part: MessagePart) -> bool:
    state = part.get("state")
    if isinstance(state, str) and state.startswith("output"):
        return True
    return any(part.get(key) is not None for key in ("output", "result", "errorText"))


def _align_forward(spans: Iterable[tuple[int, int]], boundary: int) -> int:
    """Move a boundary on until it parts no call from its results; `spans` are sorted."""
    for first, last in spans:
        if first < boundary <= last:
            boundary = last + 1
    return boundary


def _align_backward(spans: Sequence[tuple[int, int]], boundary: int) -> int:
    """Move a boundary back until it parts no call from its results."""
    for first, last in sorted(spans, key=lambda span: span[1], reverse=True):
        if first < boundary <= last:
            boundary = first
    return boundary


def _parts(message: SessionMessage) -> list[MessagePart]:
    """Return the parts; a foreign file may hold others than objects."""
    return [part for part in message["parts"] if isinstance(part, dict)]


def _tool_parts(message: SessionMessage) -> list[MessagePart]:
    return [part for part in _parts(message) if is_tool_part(part)]


# ------------------------------------------------------------------------------------ the prompt


def _prompt_for(messages: Sequence[SessionMessage], start: int, end: int) -> str:
    """Write the prompt for a range.

    The session's overlay will start at the first earlier overlay of the path when that is earlier
    than `start`, so every message from there on is in the prompt.
    """
    seen = messages[:end]
    summaries = [index for index, message in enumerate(seen) if _is_summary(message)]
    start = min([start, *summaries])
    turns = [message for message in seen[start:] if not _is_summary(message)]
    previous = "\n\n".join(filter(None, (_text_of(seen[index]) for index in summaries)))
    content = "\n\n---\n\n".join(map(_turn, turns))
    tokens = sum(map(estimate_content, turns))
    target = max(_SUMMARY_TOKENS_MIN, math.floor(tokens * _SUMMARY_SHARE))
    opening = _UPDATE.format(previous=previous, content=content) if previous else ""
    return (opening or _CREATE.format(content=content)) + _STRUCTURE.format(target=target)


def _is_summary(message: SessionMessage) -> bool:
    return message["id"].startswith(COMPACTION_PREFIX)


def _text_of(message: SessionMessage) -> str:
    texts = [part.get("text") for part in _parts(message) if part.get("type") == "text"]
    return "\n".join(map(_readable, texts))


def _turn(message: SessionMessage) -> str:
    tools = "\n".join(map(_tool, _tool_parts(message)))
    text = f"[{_readable(message['role'])}]\n{_text_of(message)}"
    return f"{text}\n{tools}" if tools else text


def _tool(part: MessagePart) -> str:
    name = part.get("toolName")
    lines = [f"[Tool: {'unknown' if name is None else _readable(name)}]"]
    lines += [
        f"{label}: {_excerpt(part[key])}"
        for label, key in (("Input", "input"), ("Output", "output"))
        if _is_truthy(part.get(key))
    ]
    return "\n".join(lines)


def _is_truthy(value: Any) -> bool:
    """Tell what JavaScript takes for true: empty lists and objects are."""
    return bool(value) or isinstance(value, (dict, list, tuple))


def _excerpt(value: Any) -> str:
    """Return the first 500 UTF-16 units of a value's JSON; half a character is left out."""
    units = dumps(value).decode().encode("utf-16-le")[: 2 * _TOOL_JSON_CHARACTERS_MAX]
    return units.decode("utf-16-le", "ignore")


def _readable(value: Any) -> str:
    """Return text that any client can send: a lone surrogate becomes U+FFFD."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else dumps(value).decode()
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_CREATE = """\
Create a concise summary of this conversation that preserves the important information for future \
context.

CONVERSATION TO SUMMARIZE:
{content}

Use this structure:
"""

_UPDATE = """\
You are updating a conversation summary. A previous summary exists below. New conversation turns \
have occurred since then and need to be incorporated.

PREVIOUS SUMMARY:
{previous}

NEW TURNS TO INCORPORATE:
{content}

Update the summary. PRESERVE existing information that is still relevant. ADD new information. \
Remove information only if it is clearly obsolete.
"""

_STRUCTURE = """
## Topic
[What the conversation is about]

## Key Points
[Important information, decisions, and conclusions from the conversation]

## Current State
[Where things stand now — what has been done, what is in progress]

## Open Items
[Unresolved questions, pending tasks, or next steps discussed]

Target ~{target} tokens. Be factual — only include information that was explicitly discussed in \
the conversation. Do NOT invent file paths, commands, or details that were not mentioned. Write \
only the summary body."""
