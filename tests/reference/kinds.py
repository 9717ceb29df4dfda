"""Differences that are accounted for: where ours answers otherwise on purpose.

Each kind names the promise it stands for (a row of "better than the reference", or a rule of the
specification) and recognises itself by the step, the two answers and the risk the episode took.
A kind that *parts* the two leaves them in different states: the episode ends there.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.reference.steps import Drawn

Answer = dict[str, Any]


@dataclass
class Seen:
    """What a kind looks at: the step, both answers, and the episode so far."""

    step: Drawn
    reference: Answer
    ours: Answer
    risks: frozenset[str]
    overlaid: bool
    forward: tuple[Answer, Answer] | None = None
    """Both answers to the same read root first, where the step reads newest first."""

    def ok(self) -> tuple[Any, Any]:
        """Return both values, or Nones where there was an error."""
        return self.reference.get("ok"), self.ours.get("ok")

    def refused(self, *classes: str) -> bool:
        """Say whether ours refused with one of these errors."""
        text = str(self.ours.get("error", ""))
        return text.startswith(tuple(f"{name}: " for name in classes))


@dataclass(frozen=True)
class Kind:
    """One kind of difference."""

    name: str
    promise: str
    parts: bool
    known: Callable[[Seen], bool]


def _both_fail(seen: Seen) -> bool:
    return "error" in seen.reference and seen.refused("ValueError", "TypeError", "RuntimeError")


def _ill_formed(seen: Seen) -> bool:
    if "ids" not in seen.risks or not seen.refused("ValueError"):
        return False
    return "Message" in seen.step.op or seen.step.op == "appendMany"


def _foreign_overlay(seen: Seen) -> bool:
    return seen.refused("ValueError") and "compaction_" in json.dumps(seen.step.args[0])


def _cycle(seen: Seen) -> bool:
    text = str(seen.ours.get("error", ""))
    return "imports" in seen.risks and seen.refused("ValueError") and "ancestor" in text


def _altered(*risks: str) -> Callable[[Seen], bool]:
    def known(seen: Seen) -> bool:
        return bool(seen.risks & set(risks)) and "ok" in seen.ours and "ok" in seen.reference

    return known


def _charged(seen: Seen) -> bool:
    """Only sizes may differ, and ours must be the larger; the window follows from them."""
    theirs, ours = seen.ok()
    if theirs is None or ours is None:
        return False
    if seen.step.op == "getRecentHistory":
        return bool(ours["totalContentBytes"] > theirs["totalContentBytes"])
    if seen.step.op != "getHistoryRowStats" or len(ours) != len(theirs):
        return False
    pairs = list(zip(theirs, ours, strict=True))
    return all(
        {**a, "bytes": 0} == {**b, "bytes": 0} and a["bytes"] <= b["bytes"] for a, b in pairs
    )


def _leaked(seen: Seen) -> bool:
    theirs, ours = seen.ok()
    if seen.step.op != "sql" or "attachment_meta" not in seen.step.args[0]:
        return False
    return bool(theirs) and all(row in theirs for row in ours or [])


def _hits(seen: Seen) -> tuple[dict[str, str], dict[str, str]] | None:
    """Both answers to a search: what each found, halves of emojis and digests of texts left out."""
    theirs, ours = seen.ok()
    if seen.step.op != "search" or theirs is None or ours is None:
        return None

    def content(hit: dict[str, Any]) -> str:
        text = hit["content"]
        return re.sub("[\ufffd\ud800-\udfff]", "", text) if isinstance(text, str) else "long"

    return {hit["id"]: content(hit) for hit in theirs}, {hit["id"]: content(hit) for hit in ours}


def _search_same(seen: Seen) -> bool:
    """The same hits; their order, or half an emoji that the reference replaced, may differ."""
    hits = _hits(seen)
    return hits is not None and hits[0] == hits[1] and not _roles_differ(seen)


def _search_more(seen: Seen) -> bool:
    """Ours found all of theirs, and more: in other scripts, or in texts longer than a row."""
    hits = _hits(seen)
    if hits is None or not hits[0].items() <= hits[1].items():
        return False
    more = hits[1].keys() - hits[0].keys()
    return bool(more) and ("cjk" in seen.risks or all(hits[1][name] == "long" for name in more))


def _roles_differ(seen: Seen) -> bool:
    theirs, ours = seen.ok()
    return {h["id"]: h["role"] for h in theirs} != {h["id"]: h["role"] for h in ours}


def _search_roles(seen: Seen) -> bool:
    hits = _hits(seen)
    return hits is not None and hits[0] == hits[1] and _roles_differ(seen)


def _search_nul(seen: Seen) -> bool:
    return seen.step.op == "search" and "\0" in seen.step.args[0] and "error" in seen.reference


def _newest_first(seen: Seen) -> bool:
    """Ours must be history reversed, as both tell history."""
    mine = seen.ours.get("ok")
    if seen.forward is None or mine is None:
        return False
    theirs, ours = seen.forward
    return theirs == ours and bool(mine[::-1] == ours.get("ok"))


def _recent(seen: Seen) -> bool:
    """The reference must have returned more than the budget, and ours not."""
    theirs, ours = seen.ok()
    if seen.step.op != "getRecentHistory" or theirs is None or ours is None:
        return False

    def size(value: Any) -> int:
        texts = [
            json.dumps(m, ensure_ascii=False, separators=(",", ":")) for m in value["messages"]
        ]
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    budget = seen.step.args[0]
    return seen.overlaid and size(theirs) > budget and (
        size(ours) <= budget or len(ours["messages"]) == 1
    )  # fmt: skip


def _compaction(seen: Seen) -> bool:
    if "ok" not in seen.ours or "ok" not in seen.reference:
        return False
    compacts = seen.step.op in ("compact", "prompt", "getCompactions")
    return bool(seen.risks & {"calls", "overlays"}) and (compacts or seen.overlaid)


KINDS = (
    Kind("both refuse", "Sessions defines no errors: ValueError, TypeError, RuntimeError", False,
         _both_fail),
    Kind("foreign overlay id", "only the session's own overlay ids are dropped; another such id:"
         " ValueError", False, _foreign_overlay),
    Kind("ill-formed", "empty id, numeric role, lone surrogate in an id: ValueError, nothing"
         " written", True, _ill_formed),
    Kind("cycle", "import can close a cycle: ValueError", True, _cycle),
    Kind("NUL in a query", "\\0 in a query is an error: everything stored is found", False,
         _search_nul),
    Kind("search finds more", "CJK runs are one token, the first search skips messages longer than"
         " a row: everything stored is found", False, _search_more),
    Kind("search order", "equal ranks have no order in the document; lone surrogates are kept",
         False, _search_same),
    Kind("search role", "a changed role stays stale: index and rows agree", False, _search_roles),
    Kind("newest first", "newest-first is history reversed", False, _newest_first),
    Kind("recent window", "the budget counts what is returned", False, _recent),
    Kind("charged as shown", "an image repeated in one message is charged once: the budget counts"
         " what is returned", False, _charged),
    Kind("leaked payload", "a duplicate import leaks a payload for ever: payloads live exactly as"
         " long as a message holds them", True, _leaked),
    Kind("media", "payloads read back altered, keys added; text taken for base64: byte-identical"
         " always", True, _altered("media")),
    Kind("pointer", "a pointer resolves only where this store put it", True, _altered("pointer")),
    Kind("openai metadata", "providerMetadata.openai that is no object is mangled; keys keep their"
         " order", True, _altered("openai")),
    Kind("reasoning text", "a reasoning part that carries its text in `reasoning` is kept", True,
         _altered("reasoning")),
    Kind("huge integers", "integers of any size are kept", True, _altered("huge")),
    Kind("compaction", "what an overlay hides was in its prompt; calls stay with results; no"
         " repeat", True, _compaction),
)  # fmt: skip


def kind_of(seen: Seen) -> Kind | None:
    """Find the kind a difference is of; None: not accounted for."""
    return next((kind for kind in KINDS if kind.known(seen)), None)
