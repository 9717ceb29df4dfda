"""Import and export formats: which there are, and which one a file is in."""

import re

from .ai_sdk import read_ai_sdk
from .base import ImportedConversation, Importer, Problem, Reader, Report
from .chatgpt import read_chatgpt
from .claude_code import read_claude_code
from .durable_object import read_durable_object
from .exports import EXPORTERS, LISTS, export_one
from .jsonl import read_jsonl
from .oasst import read_oasst
from .openai import read_openai
from .source import Source, open_sources, text_source
from .transfer import ImportSummary, import_conversations

IMPORTERS: dict[str, Importer] = {
    "jsonl": read_jsonl,
    "oasst": read_oasst,
    "chatgpt": read_chatgpt,
    "claude-code": read_claude_code,
    "ai-sdk": read_ai_sdk,
    "openai": read_openai,
    "durable-object": read_durable_object,
}

_HEAD_BYTES = 256 * 1024
# The first that is found near the beginning of a file decides; keys inside JSON strings have their
# quotes escaped and do not match.
_SIGNS = (
    ("durable-object", re.compile(rb"\ASQLite format 3\0")),
    ("jsonl", re.compile(rb'"format"\s*:\s*"sessions-actor"')),
    ("oasst", re.compile(rb'"message_tree_id"\s*:')),
    ("claude-code", re.compile(rb'"(parentUuid|leafUuid|sessionId)"\s*:')),
    ("chatgpt", re.compile(rb'"(mapping|current_node)"\s*:')),
    ("ai-sdk", re.compile(rb'"(parts|toolInvocations)"\s*:\s*\[')),
    ("openai", re.compile(rb'"role"\s*:\s*"')),
)


def detect(source: Source) -> str | None:
    """Return the format that a file's beginning shows, None when it shows none."""
    head = source.peek(_HEAD_BYTES)
    return next((name for name, sign in _SIGNS if sign.search(head)), None)


__all__ = [
    "EXPORTERS",
    "IMPORTERS",
    "LISTS",
    "ImportSummary",
    "ImportedConversation",
    "Importer",
    "Problem",
    "Reader",
    "Report",
    "Source",
    "detect",
    "export_one",
    "import_conversations",
    "open_sources",
    "text_source",
]
