"""Trees and texts for terminals: nothing from outside acts on the screen, branches are clear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from router import render
from router.render import ConversationTree, TreeRow, clean, count, moment, preview, size
from sessions_actor.records import Compaction


def row(message_id: str, parent_id: str | None = None, role: str = "user") -> TreeRow:
    """Return a row whose preview names it."""
    return TreeRow(message_id, parent_id, role, f"says {message_id}", 0)


def chain(first: int, last: int, above: str | None = None) -> list[TreeRow]:
    """Return rows m<first> to m<last>, each the child of the one before."""
    parents = [above, *(f"m{number}" for number in range(first, last))]
    return [row(f"m{n}", parent) for n, parent in zip(range(first, last + 1), parents, strict=True)]


def lines(tree: ConversationTree, width: int = 100) -> list[str]:
    """Return the tree as it is printed."""
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(tree.render("talk"), markup=False)
    return captured.get().rstrip("\n").split("\n")


@given(st.text(st.characters(codec=None)), st.none() | st.integers(2, 50))
def test_cleaned_text_is_one_printable_line(text: str, limit: int | None) -> None:
    shown = clean(text, limit)
    assert "\n" not in shown
    assert all(ord(one) >= 32 and not 0x7F <= ord(one) < 0xA0 for one in shown)
    shown.encode()  # no lone surrogate is left
    assert limit is None or len(shown) <= limit


def test_terminal_commands_do_not_survive() -> None:
    shown = clean("\x1b]0;title\x07a\x1b[2Jb\u202ec\r\nd")
    assert shown == "\ufffd]0;title\ufffda\ufffd[2Jb\ufffdc d"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 KB"), (1_871_872, "1.9 MB"), (10**10, "10.0 GB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


def test_counts_and_times() -> None:
    assert count(1, "branch", "branches") == "1 branch"
    assert count(1167, "message") == "1,167 messages"
    assert moment("2026-01-02T12:00:00.000Z").startswith("2026-01-0")
    assert moment(1e30) == moment("yesterday") == ""


def test_a_message_in_one_line() -> None:
    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "Look:\nhere"},
        {"type": "tool-sky", "toolCallId": "1", "input": {}, "state": "output-available"},
        {"type": "tool-sky", "toolCallId": "1", "state": "output-error"},
        {"type": "dynamic-tool", "toolName": "x", "toolCallId": "2", "input": 1},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"},
        {"type": "file", "filename": "a.pdf", "url": "https://x"},
        {"type": "data-odd"},
        {},
    ]
    assert preview({"id": "m", "role": "user", "parts": parts}, 400) == (
        "(thinking: hm) Look: here [called sky] [failed sky] [calls x] [image/png, 3 B]"
        " [a.pdf: file, by reference] [data-odd] []"
    )


def test_the_active_path_is_straight_and_branches_hang_where_they_leave_it() -> None:
    rows = [
        row("u1"),
        row("a1", "u1", "assistant"),
        row("x1", "a1"),
        row("a2", "u1", "assistant"),
        row("u2", "a2"),
    ]
    tree = ConversationTree(rows)
    assert tree.branches == 2
    assert lines(tree) == [
        "talk",
        "├── user  u1  says u1",
        "│   └── branch 1 of 2",
        "│       ├── assistant  a1  says a1",
        "│       └── user  x1  says x1",
        "├── assistant (branch 2 of 2)  a2  says a2",
        "└── user ● active leaf  u2  says u2",
    ]


def test_the_newest_row_is_the_active_leaf_wherever_it_hangs() -> None:
    tree = ConversationTree([row("u1"), row("u2", "u1"), row("late", "u1")])
    assert "user (branch 2 of 2) ● active leaf  late  says late" in lines(tree)[-1]


def test_several_roots_and_rows_whose_parent_is_missing() -> None:
    shown = lines(ConversationTree([row("a"), row("b"), row("c", "nowhere")]))
    assert [line.strip("│├└─ ") for line in shown[1:]] == [
        "root 1 of 3",
        "user  a  says a",
        "root 2 of 3",
        "user  b  says b",
        "root 3 of 3",
        "user ● active leaf  c  says c",
    ]


def test_an_overlay_stands_above_what_it_hides() -> None:
    overlay = Compaction("c1", "What was said.", "m2", "m3", "")
    tree = ConversationTree(chain(1, 5), [overlay])
    assert [line.strip("│├└─ ") for line in lines(tree)[1:]] == [
        "user  m1  says m1",
        "▣ summary of the next 2 messages: What was said.  compaction_c1",
        "┊ user  m2  says m2",
        "┊ user  m3  says m3",
        "user  m4  says m4",
        "user ● active leaf  m5  says m5",
    ]


def test_an_overlay_off_the_active_path_is_named_below() -> None:
    overlay = Compaction("c1", "Aside.", "m2", "gone", "")
    shown = lines(ConversationTree(chain(1, 3), [overlay]))
    assert shown[-1] == "overlay c1 (m2 to gone) hides nothing on the active path"


def test_a_long_run_is_shown_by_its_ends_and_an_overlay_in_it_still() -> None:
    overlay = Compaction("c1", "Middle.", "m40", "m45", "")
    shown = lines(ConversationTree(chain(1, 100), [overlay]))
    assert len(shown) == 1 + render.RUN_HEAD + 1 + render.RUN_TAIL + 1
    assert "… 82 more messages …" in "\n".join(shown)
    assert any("▣ summary of the next 6" in line for line in shown)
    full = lines(ConversationTree(chain(1, 100), full=True))
    assert len(full) == 101


def test_branching_places_inside_a_long_run_are_shown() -> None:
    rows = [*chain(1, 60), row("side", "m30"), row("end", "m60")]
    shown = "\n".join(lines(ConversationTree(rows)))
    assert "m30" in shown
    assert "side" in shown
    assert shown.count("more message") == 2


def test_very_many_branches_are_cut_short_unless_asked_for() -> None:
    rows = [row("root"), *(row(f"b{number}", "root") for number in range(500))]
    assert "more branches" in lines(ConversationTree(rows))[-1]
    assert len(lines(ConversationTree(rows, full=True))) > 1000


def test_a_deep_tree_of_branches_inside_branches() -> None:
    rows = [row("m0")]
    for number in range(1, 1000):
        rows += [row(f"m{number}", f"m{number - 1}"), row(f"s{number}", f"m{number - 1}")]
    assert len(lines(ConversationTree(rows, full=True))) > 2000


def test_an_empty_conversation() -> None:
    assert lines(ConversationTree([])) == ["talk", "└── no messages yet"]


def test_a_ring_of_parents_in_a_foreign_file_ends() -> None:
    shown = lines(ConversationTree([row("a", "b"), row("b", "a"), row("c")]))
    assert shown == ["talk", "└── user ● active leaf  c  says c"]
