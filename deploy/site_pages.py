"""Puts the operations guide, which is `deploy/README.md`, on the site: a hook of mkdocs.

Links to pages of the site become links to them, those to files of the repository their names.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

GUIDE = Path(__file__).parent / "README.md"
PAGE = "operations.md"
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://|#)([^)\s]*)\)")


def on_config(config: Any) -> Any:
    """Name the page first in its section."""
    if GUIDE.exists():
        for section in config.nav:
            if isinstance(section, dict) and "Operations" in section:
                section["Operations"].insert(0, PAGE)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Make the page."""
    if GUIDE.exists():
        text = _LINK.sub(_on_the_site, GUIDE.read_text())
        files.append(File.generated(config, PAGE, content=text))
    return files


def _on_the_site(link: re.Match[str]) -> str:
    label, target = link.groups()
    if target.startswith("docs/"):
        return f"[{label}]({target.removeprefix('docs/')})"
    return label if label.startswith("`") else f"`{label}`"
