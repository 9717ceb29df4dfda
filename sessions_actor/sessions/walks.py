"""The queries that follow a path from a row towards its root, and what they give of each row."""

from __future__ import annotations

from typing import NamedTuple

from . import schema

Text = bytes
"""A message's stored JSON, in UTF-8."""


class PathRow(NamedTuple):
    """One stored row of a path. `bytes`: all its slices, and its payloads inline.

    `text` is its stored JSON where a walk brought it along, `held` whether payloads belong to it.
    """

    id: str
    parent_id: str | None
    seq: int
    role: str
    bytes: int
    token_estimate: int
    held: bool
    text: Text | None


# One seek per row; nothing but small values goes through the recursive queue. `octet_length`
# reads the size from the record's header and leaves overflow pages alone.
WALK = f"""
WITH RECURSIVE path(id, parent_id, depth) AS (
  SELECT id, parent_id, 1 FROM {schema.MESSAGES} WHERE session_id = ?1 AND id = ?2
  UNION ALL
  SELECT m.id, m.parent_id, path.depth + 1 FROM path
  JOIN {schema.MESSAGES} m ON m.session_id = ?1 AND m.id = path.parent_id
  WHERE path.depth < ?3
)
SELECT id, parent_id FROM path"""

SIZED_WALK = f"""
WITH RECURSIVE path(id, parent_id, seq, role, octets, chunks, tokens, text, depth) AS (
  SELECT id, parent_id, seq, role, octet_length(content), content_chunks, token_estimate,
    CASE WHEN octet_length(content) <= ?4 THEN CAST(content AS BLOB) END, 1
  FROM {schema.MESSAGES} WHERE session_id = ?1 AND id = ?2
  UNION ALL
  SELECT m.id, m.parent_id, m.seq, m.role, octet_length(m.content), m.content_chunks,
    m.token_estimate,
    CASE WHEN octet_length(m.content) <= ?4 THEN CAST(m.content AS BLOB) END, path.depth + 1
  FROM path JOIN {schema.MESSAGES} m ON m.session_id = ?1 AND m.id = path.parent_id
  WHERE path.depth < ?3
)
SELECT id, parent_id, seq, role,
  octets + CASE WHEN chunks = 0 THEN 0 ELSE COALESCE((
    SELECT SUM(octet_length(c.content)) FROM {schema.CONTINUATIONS} c
    WHERE c.session_id = ?1 AND c.id = path.id), 0) END,
  tokens,
  EXISTS (SELECT 1 FROM {schema.REFERENCES} r WHERE r.session_id = ?1 AND r.message_id = path.id),
  CASE WHEN chunks = 0 THEN text END
FROM path"""
