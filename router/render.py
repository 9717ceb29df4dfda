"""How conversations look in a terminal: trees with their branches and overlays, tables, sizes.

Everything that came from outside (names, ids, texts) is cleaned of control characters before it is
shown, so that no message can move the cursor or repaint the screen. A long run of messages is shown
by its ends. Nothing here talks to a deployment.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from sessions_actor.overlays import COMPACTION_PREFIX, Span, plan_overlays
from sessions_actor.records import Compaction

PREVIEW_CHARACTERS = 160
# Messages shown at the beginning and at the end of a run without branches.
RUN_HEAD, RUN_TAIL = 6, 12
# Branches shown, unless everything is asked for.
BRANCHES_MAX = 200

_STYLES = {"user": "green", "assistant": "cyan", "system": "yellow", "developer": "yellow"}
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SPACE = re.compile(r"\s+")


def clean(text: str, characters: int | None = None) -> str:
    """Return text on one line, without anything a terminal would act on."""
    if characters is not None:
        text = text[: 4 * characters]
    text = _SPACE.sub(" ", text).strip()
    text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    if characters is not None and len(text) > characters:
        text = text[: characters - 1] + "…"
    return text


def size(count: float) -> str:
    """Return bytes as people read them: `999 B`, `1.2 KB`, `3.4 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def moment(value: str | float) -> str:
    """Return a time (ISO 8601 or ms) in the terminal's own zone, to the minute; "" for none."""
    try:
        if isinstance(value, str):
            when = datetime.fromisoformat(value)
        else:
            when = datetime.fromtimestamp(value / 1000, UTC)
        return when.astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return ""


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 message`, `1,167 messages`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """Return an empty table in the one style of this program; `right` names numeric columns."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Return a list of names and values."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return made


def preview(message: Mapping[str, Any], characters: int = PREVIEW_CHARACTERS) -> str:
    """Return what a message says in one line: its words, its tool calls, its files."""
    found: list[str] = []
    length = 0
    for part in message.get("parts", ()):
        shown = _part(part, characters)
        if shown:
            found.append(shown)
            length += len(shown)
            if length > characters:
                break
    return clean(" ".join(found), characters)


def _part(part: Mapping[str, Any], characters: int) -> str:
    kind = str(part.get("type", ""))
    if kind == "text":
        return clean(str(part.get("text", "")), characters)
    if kind == "reasoning":
        said = part.get("text") or part.get("reasoning") or ""
        return f"(thinking: {clean(str(said), characters // 2)})" if said else ""
    if kind == "step-start":
        return ""
    if kind.startswith("tool-") or kind == "dynamic-tool":
        name = part.get("toolName") if kind == "dynamic-tool" else kind[5:]
        return f"[{_tool_state(part)} {name}]"
    if kind == "file":
        name = part.get("filename")
        about = f"{part.get('mediaType', 'file')}, {_payload_size(part)}"
        return f"[{clean(str(name))}: {about}]" if name else f"[{about}]"
    return f"[{kind}]"


def _tool_state(part: Mapping[str, Any]) -> str:
    state = part.get("state")
    if state == "output-error":
        return "failed"
    if state == "output-available" or "output" in part:
        return "result of" if "input" not in part else "called"
    return "calls"


def _payload_size(part: Mapping[str, Any]) -> str:
    url = part.get("url")
    if isinstance(url, str) and url.startswith("data:"):
        head, _, data = url.partition(",")
        return size(len(data) * 3 // 4 if head.endswith(";base64") else len(data))
    return "by reference"


@dataclass(frozen=True, slots=True)
class TreeRow:
    """What the tree shows of one stored message."""

    id: str
    parent_id: str | None
    role: str
    preview: str
    created_at: float


class ConversationTree:
    """One session as a tree: the active path is one straight line, other branches hang where they
    leave it, and so on inside each branch."""

    def __init__(
        self,
        rows: Iterable[TreeRow],
        overlays: Sequence[Compaction] = (),
        *,
        full: bool = False,
    ) -> None:
        self.rows: dict[str, TreeRow] = {}
        leaf: str | None = None
        for row in rows:
            self.rows[row.id] = row
            leaf = row.id
        self.leaf_id = leaf
        self._full = full
        self._children: dict[str | None, list[str]] = {}
        for row in self.rows.values():
            above = row.parent_id if row.parent_id in self.rows else None
            self._children.setdefault(above, []).append(row.id)
        self._at = {message_id: at for at, message_id in enumerate(self._path_to(leaf))}
        self.spans: list[Span] = list(plan_overlays(self._at, overlays))
        self._starts = {span.start: span for span in self.spans}
        applied = {span.compaction.id for span in self.spans}
        self.idle = [overlay for overlay in overlays if overlay.id not in applied]

    @property
    def branches(self) -> int:
        """How many leaves there are: each ends a branch of its own."""
        return sum(message_id not in self._children for message_id in self.rows)

    def render(self, heading: str) -> RenderableType:
        """Return the tree, and below it the overlays that hide nothing on the active path."""
        tree = Tree(Text(clean(heading), style="bold"), guide_style="dim")
        roots = self._children.get(None, [])
        # Runs to show: (first message, where the run hangs, what to say of it).
        work: list[tuple[str, Tree, Text | None]] = []
        if len(roots) == 1:
            work.append((roots[0], tree, None))
        for number, root in enumerate(roots if len(roots) > 1 else (), 1):
            title = Text(f"root {number} of {len(roots)}", style="magenta")
            work.insert(0, (root, tree, title))
        shown = 0
        while work:
            head, node, label = work.pop()
            shown += 1
            if shown > BRANCHES_MAX and not self._full:
                left = count(len(work) + 1, "more branch", "more branches")
                tree.add(Text(f"… {left}, and what hangs on them …", style="dim italic"))
                break
            self._show_run(head, node if label is None else node.add(label), work)
        if not self.rows:
            tree.add(Text("no messages yet", style="dim"))
        notes = [self._idle_note(overlay) for overlay in self.idle]
        return Group(tree, *notes) if notes else tree

    def _path_to(self, leaf: str | None) -> list[str]:
        path: list[str] = []
        seen: set[str] = set()
        while leaf is not None and leaf in self.rows and leaf not in seen:
            seen.add(leaf)
            path.append(leaf)
            leaf = self.rows[leaf].parent_id
        return path[::-1]

    def _show_run(self, head: str, node: Tree, work: list[tuple[str, Tree, Text | None]]) -> None:
        """Show messages side by side, following the active branch, else the newest."""
        run = [head]
        while below := self._children.get(run[-1]):
            run.append(next((child for child in below if child in self._at), below[-1]))
        side: list[tuple[str, Tree, Text | None]] = []
        hidden = self._hidden(run)
        for index, message_id in enumerate(run):
            span = self._starts.get(self._at.get(message_id, -1))
            if span is not None:
                node.add(self._span_label(span))
            if index in hidden:
                if index - 1 not in hidden:
                    node.add(Text(f"… {count(hidden[index], 'more message')} …", "dim italic"))
                continue
            siblings = self._children[run[index - 1]] if index else [message_id]
            made = node.add(self._label(message_id, siblings))
            below = self._children.get(message_id, [])
            for number, child in enumerate(below, 1):
                if child != run[index + 1]:
                    title = Text(f"branch {number} of {len(below)}", style="magenta")
                    side.append((child, made, title))
        work.extend(reversed(side))

    def _hidden(self, run: list[str]) -> dict[int, int]:
        """Return the places of a run that are left out, each with the length of its stretch.

        Where branches leave is always shown, and some messages around.
        """
        if self._full:
            return {}
        hidden: dict[int, int] = {}
        begin = 0
        for index, message_id in enumerate(run):
            if index == len(run) - 1 or len(self._children[message_id]) > 1:
                first, last = begin + RUN_HEAD, index - RUN_TAIL
                if last - first >= 1:
                    hidden |= dict.fromkeys(range(first, last + 1), last + 1 - first)
                begin = index + 1
        return hidden

    def _span_label(self, span: Span) -> Text:
        hidden = count(span.end - span.start + 1, "message")
        label = Text(no_wrap=True, overflow="ellipsis")
        label.append("▣ summary", style="bold yellow")
        label.append(f" of the next {hidden}: ", style="yellow")
        label.append(clean(span.compaction.summary, PREVIEW_CHARACTERS))
        label.append(f"  {COMPACTION_PREFIX}{clean(span.compaction.id)}", style="dim")
        return label

    def _idle_note(self, overlay: Compaction) -> Text:
        ends = f"{clean(overlay.from_message_id)} to {clean(overlay.to_message_id)}"
        note = f"overlay {clean(overlay.id)} ({ends}) hides nothing on the active path"
        return Text(note, style="dim")

    def _label(self, message_id: str, siblings: list[str]) -> Text:
        row = self.rows[message_id]
        at = self._at.get(message_id)
        covered = at is not None and self._is_covered(at)
        label = Text(no_wrap=True, overflow="ellipsis", style="dim" if covered else "")
        label.append("┊ " if covered else "", style="yellow")
        label.append(clean(row.role), style=_STYLES.get(row.role, "magenta"))
        if len(siblings) > 1:
            number = siblings.index(message_id) + 1
            label.append(f" (branch {number} of {len(siblings)})", style="magenta")
        if message_id == self.leaf_id:
            label.append(" ● active leaf", style="bold")
        label.append(f"  {clean(message_id)}  ", style="dim")
        label.append(clean(row.preview))
        return label

    def _is_covered(self, at: int) -> bool:
        index = bisect_right(self.spans, at, key=lambda span: span.start) - 1
        return index >= 0 and at <= self.spans[index].end
