"""What the rows of a path come to, summed up by SQLite in steps of a bounded number of rows."""

from __future__ import annotations

from typing import NamedTuple

from ..codec import loads
from . import schema
from .sql import Database
from .store import Store

# The walk of `Store`, with sums. Columns beside MAX() are those of the row that it chose.
_SUMMED_WALK = f"""
WITH RECURSIVE path(id, parent_id, octets, chunks, tokens, depth) AS (
  SELECT id, parent_id, octet_length(content), content_chunks, token_estimate, 1
  FROM {schema.MESSAGES} WHERE session_id = ?1 AND id = ?2
  UNION ALL
  SELECT m.id, m.parent_id, octet_length(m.content), m.content_chunks, m.token_estimate,
    path.depth + 1
  FROM path JOIN {schema.MESSAGES} m ON m.session_id = ?1 AND m.id = path.parent_id
  WHERE path.depth < ?3
)
SELECT MAX(depth), id, parent_id,
  SUM(octets + CASE WHEN chunks = 0 THEN 0 ELSE COALESCE((
    SELECT SUM(octet_length(c.content)) FROM {schema.CONTINUATIONS} c
    WHERE c.session_id = ?1 AND c.id = path.id), 0) END),
  SUM(tokens), SUM(id = ?4),
  json_group_array(id) FILTER (WHERE EXISTS (
    SELECT 1 FROM {schema.REFERENCES} r WHERE r.session_id = ?1 AND r.message_id = path.id))
FROM path"""


class PathSums(NamedTuple):
    """How many rows a path has, their bytes as a budget counts them, their tokens."""

    length: int
    bytes: int
    tokens: int


def sum_path(store: Store, session_id: str, leaf_id: str, step_rows: int) -> PathSums | None:
    """Sum up a path, overlays left out of account; None for one that bites its tail.

    Cost: a row read per message, no content; a message that holds payloads is read whole.
    """
    db: Database = store.storage.connection
    length = size = tokens = 0
    at: str | None = leaf_id
    tortoise, turtle_at = "", step_rows
    while at is not None:
        ((count, last, parent_id, octets, weight, bitten, held),) = db.execute(
            _SUMMED_WALK, (session_id, at, step_rows, tortoise)
        ).fetchall()
        if bitten:
            return None
        if not count:
            break
        length, size, tokens = length + count, size + octets, tokens + weight
        for message_id in loads(held):
            text = store.text(session_id, message_id)
            assert text is not None
            size += store.payloads.bytes_of(session_id, message_id, text)
        at = parent_id if count == step_rows else None
        if length >= turtle_at:  # Brent: a marker that leaps ahead
            tortoise, turtle_at = last, turtle_at * 2
    return PathSums(length, size, tokens)
