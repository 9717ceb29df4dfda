"""Steps for the differential run: drawn from a seed, the same for both implementations.

An episode is one fresh conversation. Its ids come from a short list, so that known, unknown,
deleted and reused ones all occur. What is known to be answered differently (a *risk*) is drawn
only in episodes that take that risk, so that most episodes compare everything to the end.
"""

import base64
import random
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

IDS = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "\u00e9", "x\x00y", "0", "__proto__")
SESSIONS = ("", "drafts")
WORDS = (
    "kiwi",
    "mango",
    "zorb",
    "Running",
    "runs",
    "deployment",
    "failed",
    "caf\u00e9",
    "42",
    "C++",
)
ODD_TEXTS = ("", " ", "\n", "\x00", "\ud83d", "\U0001f4a5", "\u2028", '"\\', "\ufeff", "a" * 500)
QUERIES = ("kiwi", "mango zorb", "run", "deployment failed", "42", "cafe", "C++", '"', "*", "NEAR(")
TYPES = ("image/png", "application/pdf", "audio/wav", "text/plain")
PAYLOADS = (b"", b"x", b"payload", bytes(range(90)))
RESERVED = ("channel", "turnMetadata")

RISKS = (
    "media",  # payloads whose text or header the reference alters
    "pointer",  # texts that look like the store's own pointers
    "repeated",  # one payload several times in a message
    "cjk",  # texts and queries in scripts without spaces
    "openai",  # provider metadata the reference mangles or moves
    "reasoning",  # reasoning parts that carry their text in `reasoning`
    "huge",  # integers beyond 53 bits
    "ids",  # ids and roles that are none
    "compaction",  # ids that look like an overlay's
    "calls",  # tool calls whose results stand in other messages
    "overlays",  # compacting where overlays or deletions are
    "summaries",  # summaries larger than what they hide
    "imports",  # imports under parents that are not there, in any order
    "index",  # texts longer than a row before the first search, changed roles
    "queries",  # queries with NUL
)


@dataclass(frozen=True)
class Drawn:
    """One operation for both."""

    op: str
    args: list[Any]
    session: str = ""


@dataclass
class Episode:
    """Draw the steps of one conversation.

    Args:
        seed: Everything follows from it.
        risks: What may be drawn although the two are known to differ there.
    """

    seed: str
    risks: frozenset[str] = frozenset()
    overlays: int = 0
    searched: bool = False
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.operations = [
            (draw, weight)
            for draw, weight in (
                (self.append, 26), (self.append_many, 4), (self.update, 8), (self.upsert, 6),
                (self.delete, 6), (self.imports, 5), (self.clear, 0.4), (self.overlay, 3),
                (self.summariser, 1.5), (self.compact, 2), (self.threshold, 0.7),
                (self.history, 10), (self.batches, 3), (self.recent, 6), (self.stats, 4),
                (self.message, 4), (self.leaf, 3), (self.branches, 4), (self.search, 4),
                (self.records, 2), (self.events, 6), (self.rows, 6),
            )
        ]  # fmt: skip

        # Compacting where overlays or deletions are is a risk: without it, one or the other.
        compacting = self.rng.random() < 0.3
        left_out = [self.overlay, self.delete, self.imports] if compacting else [
            self.summariser, self.compact, self.threshold]  # fmt: skip
        if not self.risks & {"overlays", "calls"}:
            self.operations = [pair for pair in self.operations if pair[0] not in left_out]

    def next(self) -> Drawn:
        """Draw the next step."""
        draws, weights = zip(*self.operations, strict=True)
        [draw] = self.rng.choices(draws, weights)
        op, *args = draw()
        session = "" if self.rng.random() < 0.8 else self.rng.choice(SESSIONS)
        return Drawn(op, list(args), session)

    def risk(self, name: str, chance: float = 0.25) -> bool:
        """Say whether to take a risk now."""
        return name in self.risks and self.rng.random() < chance

    # ------------------------------------------------------------------------------------ content
    def text(self) -> str:
        """Draw a text."""
        if self.rng.random() < 0.1:
            return self.rng.choice(ODD_TEXTS)
        words = [self.rng.choice(WORDS) for _ in range(self.rng.randint(1, 6))]
        if self.risk("cjk"):
            words.append(
                self.rng.choice(
                    ("\u6771\u4eac\u30bf\u30ef\u30fc", "\u6771\u4eac", "gen\u6f22\u5b57x")
                )
            )
        return " ".join(words)

    def media(self) -> dict[str, Any]:
        """Draw an object with a payload."""
        number = self.rng.randrange(len(PAYLOADS))
        text, kind = base64.b64encode(PAYLOADS[number]).decode(), TYPES[number]
        header = f"data:{kind};base64,"
        if self.risk("media"):
            text = self.rng.choice((text.rstrip("="), text + "\n", "AB==", text))
            header = self.rng.choice((header, f"data:{kind};name=x;base64,", "data:;base64,"))
            kind = self.rng.choice((kind, "image/webp", "application/sql"))
            if self.rng.random() < 0.3:
                return {"url": header + text}
            if self.rng.random() < 0.3:
                return {"mediaType": "application/sql", "data": self.rng.choice(("SELECT", "YES1"))}
        if self.risk("pointer"):
            digest = self.rng.choice(
                ("0" * 64, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881")
            )
            return {"mediaType": kind, "url": f"attachment:sha256:{digest}"}
        if self.rng.random() < 0.3:
            return {"mediaType": kind, "data": text}
        return {"mediaType": kind, "url": header + text}

    def part(self) -> dict[str, Any]:
        """Draw a part."""
        kind = self.rng.randrange(12)
        if self.risk("openai"):
            metadata = self.rng.choice(("x", 5, {"k": 1}, {"itemId": 1, "k": 2}, [1]))
            return {"type": "text", "providerMetadata": {"openai": metadata}, "text": self.text()}
        if self.risk("reasoning"):
            return {"type": "reasoning", "reasoning": self.text()}
        if self.risk("huge"):
            return {"type": "data-x", "data": [2**53 + 1, 10**30, -(2**64)]}
        if kind < 6:
            return {"type": "text", "text": self.text()}
        if kind == 6:
            return {"type": "reasoning", "text": self.rng.choice(("", " ", "thinking"))}
        if kind == 7:
            return {"type": "file", "filename": "f", **self.media()}
        if kind == 8:
            output = self.rng.choice(
                (self.text(), {"a": [1, None, True]}, self.media(), [self.media()])
            )
            return {
                "type": "tool-x",
                "toolCallId": f"t{self.rng.random()}",
                "input": {"q": 1},
                "output": output,
            }
        if kind == 9:
            return {"type": "text", "text": "x", "providerMetadata": {"openai": {"itemId": "i"}}}
        if kind == 10:
            return {"type": "data-x", "data": {"": 0.5, "k": [-1, []], "t": self.text()}}
        return {"type": "step-start"}

    def call(self) -> dict[str, Any]:
        """Draw a tool call or a result of one, of a few names."""
        name = f"c{self.rng.randrange(3)}"
        more = {"input": {"q": name}} if self.rng.random() < 0.5 else {"output": name}
        return {"type": "tool-get", "toolCallId": name, **more}

    def id(self) -> Any:
        """Draw an id."""
        if self.risk("ids", 0.1):
            return self.rng.choice(("", "\ud800", "x\udc00"))
        if self.risk("compaction", 0.1):
            return "compaction_foreign"
        if self.overlays and self.rng.random() < 0.04:
            return self.overlay_id()
        return self.rng.choice(IDS)

    def overlay_id(self) -> str:
        """Name one of the overlays made so far; each implementation knows its id."""
        return f"compaction_<<{self.rng.randrange(self.overlays)}>>" if self.overlays else "none"

    def body(self) -> Message:
        """Draw a message."""
        parts = [self.part() for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3)))]
        if self.risk("calls", 0.5):
            parts.append(self.call())
        if self.risk("repeated"):
            parts += [parts[-1]] * 2 if parts else []
        if self.rng.random() < 0.01 or (self.risk("index", 0.1)):
            parts.append({"type": "text", "text": "long " * 330_000 + self.rng.choice(WORDS)})
        role: Any = self.rng.choice(("user", "assistant", "assistant", "tool"))
        if self.risk("ids", 0.1):
            role = self.rng.choice((5, None, "\ud800"))
        message: Message = {"id": self.id(), "role": role, "parts": parts}
        if self.rng.random() < 0.2:
            keys = self.rng.sample(("channel", "turnMetadata", "k", ""), 2)
            message["metadata"] = self.rng.choice(
                (None, {k: self.text() for k in keys}, {}, [1], "s")
            )
        return message

    # --------------------------------------------------------------------------------- operations
    def options(self) -> dict[str, Any]:
        """Draw where an append goes and who sent it."""
        options: dict[str, Any] = {}
        if self.rng.random() < 0.3:
            options["parentId"] = self.rng.choice((None, "", "?", *IDS, self.overlay_id()))
        if self.rng.random() < 0.2:
            options["source"] = self.rng.choice(("client", "server"))
        return options

    def leaf_option(self) -> dict[str, Any]:
        """Draw which path to read."""
        chance = self.rng.random()
        if chance < 0.5:
            return {}
        return {"leafId": self.rng.choice((None, "", "?", *IDS, *IDS, self.overlay_id()))}

    def append(self) -> list[Any]:
        """Append."""
        return ["appendMessage", self.body(), self.options()]

    def append_many(self) -> list[Any]:
        """Append a chain under new ids."""
        start = self.rng.randrange(10**6)
        pairs: list[Any] = []
        for i in range(self.rng.randint(3, 9)):
            pairs.append([{**self.body(), "id": f"n{start + i}", "role": "user"}, {}])
        return ["appendMany", pairs]

    def update(self) -> list[Any]:
        """Update."""
        return ["updateMessage", self.body(), self.options()]

    def upsert(self) -> list[Any]:
        """Upsert."""
        return ["upsertMessage", self.body(), self.options()]

    def delete(self) -> list[Any]:
        """Delete."""
        count = self.rng.choice((0, 1, 1, 2, 4))
        return [
            "deleteMessages",
            [self.rng.choice((*IDS, "?", self.overlay_id())) for _ in range(count)],
        ]

    def imports(self) -> list[Any]:
        """Import, as a root, unless parents that may be missing are a risk to take."""
        parent = self.rng.choice((*IDS, "?")) if self.risk("imports", 0.8) else None
        time = self.rng.choice((0, -1, 1.5, 1_700_000_000_000))
        return ["importMessage", self.body(), {"parentId": parent, "createdAt": time}]

    def clear(self) -> list[Any]:
        """Clear."""
        return ["clearMessages"]

    def overlay(self) -> list[Any]:
        """Add an overlay."""
        summary = "S" * 5_000 if self.risk("summaries", 0.5) else self.rng.choice(("S", "", "sum"))
        self.overlays += 1
        return ["addCompaction", summary, self.rng.choice(IDS), self.rng.choice(IDS)]

    def summariser(self) -> list[Any]:
        """Install a compact function."""
        return [
            "onCompaction",
            self.rng.choice(("SUM", " ", "T")),
            self.rng.choice((1, 20, 60, 200)),
        ]

    def compact(self) -> list[Any]:
        """Compact, or read the prompt of the last time."""
        if self.rng.random() < 0.4:
            return ["prompt"]
        return ["compact", self.rng.choice((None, None, None, *IDS))]

    def threshold(self) -> list[Any]:
        """Set or lift the threshold."""
        return ["compactAfter", self.rng.choice((60, 200, 10**9))]

    def history(self) -> list[Any]:
        """Read a path."""
        options = self.leaf_option()
        if self.rng.random() < 0.5:
            options["newestFirst"] = True
        return [self.rng.choice(("history", "history", "getHistory")), options]

    def batches(self) -> list[Any]:
        """Read a path in batches."""
        options = self.leaf_option()
        options |= {"batchSize": self.rng.choice((1, 2, 5, 50))}
        options |= {"maxBatchBytes": self.rng.choice((1, 300, 1_000, 4 << 20))}
        return ["historyBatches", options]

    def recent(self) -> list[Any]:
        """Read the recent window."""
        budget = self.rng.choice((-1, 0, 100, 300, 700, 1_500, 5_000, 10**9))
        return ["getRecentHistory", budget, self.leaf_option()]

    def stats(self) -> list[Any]:
        """Read sizes and estimates."""
        return ["getHistoryRowStats", self.leaf_option().get("leafId")]

    def message(self) -> list[Any]:
        """Read one message."""
        return ["getMessage", self.rng.choice((*IDS, "?", self.overlay_id()))]

    def leaf(self) -> list[Any]:
        """Read the active leaf."""
        return ["getLatestLeaf"]

    def branches(self) -> list[Any]:
        """Read a message's children."""
        return ["getBranches", self.rng.choice((*IDS, "?"))]

    def search(self) -> list[Any]:
        """Search."""
        self.searched = True
        query = self.rng.choice(QUERIES)
        if self.risk("cjk"):
            query = self.rng.choice(("\u6771\u4eac", "\u30bf\u30ef", "gen", "\u6f22\u5b57"))
        if self.risk("queries"):
            query = self.rng.choice(("a\x00b", "kiwi\x00mango", "\x00"))
        return ["search", query, {"limit": 1_000}]

    def records(self) -> list[Any]:
        """Read the overlays."""
        return ["getCompactions"]

    def events(self) -> list[Any]:
        """Read the change events."""
        return ["events"]

    def rows(self) -> list[Any]:
        """Look into the tables."""
        table = self.rng.choice((
            "SELECT id, parent_id, seq, role, content_chunks, token_estimate FROM"
            " cf_agents_session_messages ORDER BY session_id, seq",
            "SELECT id, content FROM cf_agents_session_messages ORDER BY session_id, seq",
            "SELECT session_id, message_id, hash FROM cf_agents_session_attachment_refs"
            " ORDER BY session_id, message_id, hash",
            "SELECT hash, bytes, chunks FROM cf_agents_session_attachment_meta ORDER BY hash",
            "SELECT summary, from_message_id, to_message_id FROM cf_agents_session_compactions"
            " ORDER BY session_id, seq",
        ))  # fmt: skip
        return ["sql", table]
