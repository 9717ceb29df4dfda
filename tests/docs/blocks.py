"""The code blocks of a Markdown page, in order, with what the page says of each.

A fence opens with a language and attributes: ```` ```python title="shop.py" ````. A comment before
it, `<!-- not run: reason -->`, keeps it from being run.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<language>[\w+-]*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]*)"')
_NOT_RUN = re.compile(r"^\s*<!-- not run: (.+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its fence, `not_run` the reason if it is not run."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return a page's blocks.

    Raises: ValueError for a block that does not end.
    """
    found: list[Block] = []
    lines = page.read_text().splitlines()
    reason, at = "", 0
    while at < len(lines):
        line = lines[at]
        fence = _FENCE.match(line)
        if fence is None:
            marked = _NOT_RUN.match(line)
            is_between = not line.strip() or line.lstrip().startswith("<!--")
            reason = marked[1] if marked else (reason if is_between else "")
            at += 1
            continue
        end = at + 1
        while end < len(lines) and lines[end].strip() != fence["marks"]:
            end += 1
        if end == len(lines):
            raise ValueError(f"{page.name}:{at + 1}: the block does not end")
        indent = len(fence["indent"])
        text = "".join(f"{one[indent:]}\n" for one in lines[at + 1 : end])
        title = _TITLE.search(fence["rest"])
        found.append(
            Block(page, at + 1, fence["language"], title[1] if title else "", text, reason)
        )
        reason, at = "", end + 1
    return found
