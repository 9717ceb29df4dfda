"""What the state machines draw: small pools of ids so that calls meet, and nasty content.

Ids, parents and leaves come from one short list, so known, unknown, deleted and reused ids all
occur. Contents hold what has gone wrong elsewhere: lone surrogates, NUL, integers beyond 64 bits,
empty and blank texts, payloads in every form a data URL can take, texts that look like our own
pointers, and now and then a message longer than a row.
"""

import base64
import hashlib
from typing import Any

from hypothesis import strategies as st

from tests.property.model import OMITTED
from tests.property.operations import Operation

IDS = ("a", "b", "c", "d", "e", "f", "g", "0", "\u00e9", "\x00", " ", "'\"%_\\", "\U0001f4a5")
OWN_OVERLAYS = ("compaction_#0", "compaction_#1")  # replaced by the id of an overlay, if any
BAD_IDS: tuple[Any, ...] = ("", "\ud800", "x\udc00", 5, None, True, ["a"], "compaction_foreign")
RESERVED = ("channel", "turnMetadata")

WORDS = ("kiwi", "zorb", "mango", "Kiwi", "42", "\u6771\u4eac", "\u30bf\u30ef\u30fc")
ODDITIES = (
    "", " ", "\n\t", "\x00", "\ufeff", "\u2028", "\x1c", "\u0085", "\ud83d", "\udca5\ud83d",
    "\U0001f680", "C++", '"', "\\", "e\u0301", "*", "NEAR(", "-x", "\u200b", "a" * 300,
)  # fmt: skip
QUERIES = (
    "kiwi", "KIWI", "zorb mango", "kiwi kiwi", "42", "4", "\u6771\u4eac", "\u4eac",
    "\u30ef\u30fc", "kiwi\u6771", "", "*", '"', "x\x00y", "\ud800", "NEAR(kiwi zorb)", "ki",
)  # fmt: skip
PAYLOADS = (b"", b"x", b"\x00\xff" * 40, bytes(range(200)))
TYPES = ("image/png", "application/pdf", "text/plain", "IMAGE/PNG", "", "audio/x; a=b")
FOREIGN_POINTERS = (
    "attachment:sha256:" + hashlib.sha256(b"x").hexdigest(),
    "attachment:sha256:" + "0" * 64 + ";data:image/png;base64,",
    "attachment:verbatim:attachment:sha256:",
    "attachment:",
)

texts = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join),
    st.lists(st.sampled_from(WORDS + ODDITIES), max_size=3).map("".join),
    st.sampled_from(ODDITIES),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**63, -(2**64), 10**40, 0.5, -1.25, 1.0]),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["k", "", "id", "\u00e9", "a b"]), inner, max_size=3),
    ),
    max_leaves=5,
)


@st.composite
def media(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an object that carries a payload, or nearly one."""
    text = base64.b64encode(draw(st.sampled_from(PAYLOADS))).decode()
    text = draw(st.sampled_from([text, text, text, text.rstrip("="), text + "\n", text + "=", "_"]))
    kind = draw(st.sampled_from(TYPES))
    own = draw(st.sampled_from([kind, kind, kind + ";name=x", ""]))
    record: dict[str, Any] = {}
    if draw(st.integers(0, 3)):
        record["mediaType"] = kind
    form = draw(st.integers(0, 5))
    if form == 0:
        record["data"] = text
    elif form == 1:
        record["url"] = draw(st.sampled_from((*FOREIGN_POINTERS, "https://e.com/x", "data:,x")))
        record["data"] = draw(st.sampled_from((text, *FOREIGN_POINTERS)))
    else:
        record["url"] = f"data:{own};base64,{text}"
    return record


@st.composite
def parts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw one part."""
    kind = draw(st.integers(0, 9))
    if kind <= 3:
        return {"type": "text", "text": draw(texts)}
    if kind == 4:
        part = {"type": "reasoning", draw(st.sampled_from(["text", "reasoning"])): draw(texts)}
        return part | draw(st.sampled_from([{}, {"providerMetadata": {}}, {"state": "done"}]))
    if kind == 5:
        metadata: Any = draw(st.sampled_from([
            {"openai": {"itemId": "i"}}, {"openai": {"itemId": "i", "k": 1}}, {"openai": "x"},
            {"other": {"itemId": "i"}}, {"openai": {"k": 1}}, None, [],
        ]))  # fmt: skip
        key = draw(st.sampled_from(["providerMetadata", "callProviderMetadata"]))
        return {"type": "text", "text": draw(texts), key: metadata}
    if kind == 6:
        return {"type": "file", "filename": "f"} | draw(media())
    if kind == 7:
        output = draw(st.one_of(values_without_huge, media(), st.lists(media(), max_size=2)))
        return {"type": "tool-x", "toolCallId": "t", "input": {"q": 1}, "output": output}
    if kind == 8:
        return {"type": draw(st.sampled_from(["step-start", "data-x", ""])), "value": draw(values)}
    return {"type": "text", "text": draw(texts), "state": draw(scalars)}


values_without_huge = st.one_of(
    texts, st.lists(st.integers(-3, 3), max_size=3), st.dictionaries(st.just("k"), texts)
)
"""Values whose size as JavaScript would write them is beyond doubt: they enter the estimate."""


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw all of a message but its id."""
    body: dict[str, Any] = {
        "role": draw(st.sampled_from(["user", "assistant", "tool", ""])),
        "parts": draw(st.lists(parts(), max_size=4)),
    }
    if draw(st.integers(0, 3)) == 0:
        body["metadata"] = draw(st.one_of(
            values,
            st.dictionaries(st.sampled_from(["channel", "turnMetadata", "k"]), scalars, max_size=3),
        ))  # fmt: skip
    if draw(st.integers(0, 9)) == 0:
        body["createdAt"] = draw(scalars)
    if draw(st.integers(0, 59)) == 0:
        unit = draw(st.sampled_from(["long ", "\u65e5", "\U0001f4a5", "\\\n"]))
        body["parts"].append(
            {"type": "text", "text": unit * draw(st.sampled_from([400_000, 800_000]))}
        )
    return body


def _with_id(message_id: Any, body: dict[str, Any]) -> dict[str, Any]:
    return {"id": message_id, **body}


messages = st.builds(_with_id, st.sampled_from(IDS + OWN_OVERLAYS), bodies())
"""Mostly well-formed: two of the ids may be those of the session's own overlays."""

wrong_messages = st.one_of(
    st.builds(_with_id, st.sampled_from(BAD_IDS), bodies()),
    st.sampled_from([
        None, 5, [], "a", {}, {"id": "a"}, {"id": "a", "role": "user"},
        {"role": "user", "parts": []},
        {"id": "a", "role": 5, "parts": []}, {"id": "a", "role": None, "parts": []},
        {"id": "a", "role": "\ud800", "parts": []}, {"id": "a", "role": "user", "parts": "x"},
        {"id": "a", "role": "user", "parts": [None]}, {"id": "a", "role": "user", "parts": [{}]},
        {"id": "a", "role": "user", "parts": [{"type": 5}]},
        {"id": "a", "role": "user", "parts": {"type": "text"}},
    ]),
    st.sampled_from([float("nan"), float("inf"), b"x", {1: 2}, {"k": {"a"}}, 1j]).map(
        lambda wrong: {"id": "a", "role": "user", "parts": [{"type": "data-x", "data": [wrong]}]}
    ),
)  # fmt: skip
some_messages = st.one_of(messages, messages, messages, messages, messages, wrong_messages)

parents = st.one_of(
    st.just(OMITTED), st.just(OMITTED), st.none(), st.sampled_from((*IDS, *OWN_OVERLAYS, "", "?"))
)
leaves = st.one_of(st.none(), st.none(), st.sampled_from((*IDS, *OWN_OVERLAYS, "", "?")))
sources = st.sampled_from(["server", "server", "client"])
times = st.one_of(st.sampled_from([0, -1, 1.5, 1_700_000_000_000]), st.integers(0, 10**12))
wrong_times = st.sampled_from([None, True, "0", float("nan"), float("inf")])
ends = st.sampled_from((*IDS[:8], *OWN_OVERLAYS, "?"))
summaries = st.one_of(texts.filter(lambda text: text.isascii()), st.just("s" * 3000))
import_parents = st.one_of(st.none(), st.sampled_from((*IDS[:8], *OWN_OVERLAYS, "?", "")))


def operation(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    """Draw an operation of that name."""
    return st.tuples(*arguments).map(lambda args: Operation(name, args))


appends = st.one_of(
    operation("append", some_messages, parents, sources),
    operation("append", some_messages, parents, sources),
    operation("append_all", st.lists(some_messages, max_size=4)),
)
updates = st.one_of(
    operation("update", some_messages, sources),
    operation("upsert", some_messages, parents, sources),
)
deletions = operation("delete", st.lists(st.sampled_from((*IDS, *OWN_OVERLAYS, "?")), max_size=5))
clears = operation("clear")
imports = st.one_of(
    operation("import_one", messages, import_parents, times),
    operation("import_one", wrong_messages, import_parents, times),
    operation("import_one", messages, import_parents, wrong_times),
    operation("import_all", st.lists(st.tuples(messages, import_parents, times), max_size=4)),
)
compactions = st.one_of(
    operation("add_compaction", summaries, ends, ends),
    operation("compact", leaves, summaries, ends, ends),
)
reads = st.one_of(
    operation("history", leaves, st.booleans(), st.sampled_from([None, None, 1, 3])),
    operation("batches", leaves, st.integers(1, 5), st.sampled_from([1, 200, 2000, 4 << 20])),
    operation("recent", st.one_of(st.integers(-5, 3000), st.just(10**9)), leaves),
    operation("stats", leaves),
    operation("get_message", st.sampled_from((*IDS, *OWN_OVERLAYS, "?", "\ud800"))),
    operation("latest_leaf"),
    operation("branches", st.sampled_from((*IDS, *OWN_OVERLAYS, "?", None))),
    operation("rows", st.integers(0, 12)),
    operation("search", st.sampled_from(QUERIES)),
    operation("compactions"),
)
anything = st.one_of(appends, appends, updates, deletions, imports, compactions, reads, reads)
