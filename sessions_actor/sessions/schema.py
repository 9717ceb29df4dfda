"""The tables of Sessions, as a Durable Object writes them.

Names, columns and keys are those of the specification, so that a database file taken from a
real Durable Object opens as it is. Every table is WITHOUT ROWID and has no secondary index: one
logical write is one row write.

Source: specification, "Storage economics".
"""

from __future__ import annotations

from .sql import Database

MESSAGES = "cf_agents_session_messages"
CONTINUATIONS = "cf_agents_session_message_chunks"
COMPACTIONS = "cf_agents_session_compactions"
CONFIG = "cf_agents_session_config"
PAYLOADS = "cf_agents_session_attachment_meta"
PAYLOAD_CHUNKS = "cf_agents_session_attachment_chunks"
REFERENCES = "cf_agents_session_attachment_refs"
INDEX = "cf_agents_session_fts"

# The white space is the reference's: a file's schema text is the same whoever made it.
_TABLES = (
    """CREATE TABLE IF NOT EXISTS cf_agents_session_messages (
        session_id TEXT NOT NULL,
        id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        parent_id TEXT,
        type TEXT NOT NULL DEFAULT 'message',
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        content_chunks INTEGER NOT NULL DEFAULT 0,
        token_estimate INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        content_hash TEXT,
        PRIMARY KEY (session_id, id)
      ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS cf_agents_session_message_chunks (
        session_id TEXT NOT NULL,
        id TEXT NOT NULL,
        idx INTEGER NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (session_id, id, idx)
      ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS cf_agents_session_compactions (
        session_id TEXT NOT NULL,
        id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        summary TEXT NOT NULL,
        from_message_id TEXT NOT NULL,
        to_message_id TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        PRIMARY KEY (session_id, id)
      ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS cf_agents_session_config (
        session_id TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (session_id, key)
      ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS cf_agents_session_attachment_meta (
        hash TEXT PRIMARY KEY,
        bytes INTEGER NOT NULL,
        media_type TEXT NOT NULL,
        chunks INTEGER NOT NULL
      ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS cf_agents_session_attachment_chunks (
        hash TEXT NOT NULL,
        idx INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (hash, idx)
      ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS cf_agents_session_attachment_refs (
        session_id TEXT NOT NULL,
        message_id TEXT NOT NULL,
        hash TEXT NOT NULL,
        PRIMARY KEY (session_id, message_id, hash)
      ) WITHOUT ROWID""",
)

INDEX_TABLE = """CREATE VIRTUAL TABLE cf_agents_session_fts
       USING fts5(id UNINDEXED, session_id UNINDEXED, role UNINDEXED, content, \
tokenize='porter unicode61')"""


def table_exists(db: Database, name: str) -> bool:
    """Tell whether the file holds a table or view of this name."""
    query = "SELECT 1 FROM sqlite_master WHERE type IN ('table', 'view') AND name = ?"
    return db.execute(query, (name,)).fetchone() is not None


def ensure_tables(db: Database) -> None:
    """Create what is missing; add `content_hash` to a message table that predates it (NULL)."""
    for statement in _TABLES:
        db.execute(statement)
    columns = {row[0] for row in db.execute(f"SELECT name FROM pragma_table_info('{MESSAGES}')")}
    if "content_hash" not in columns:
        db.execute(f"ALTER TABLE {MESSAGES} ADD COLUMN content_hash TEXT")
