"""Deleting messages from the middle of a tree without cutting off what hangs below.

Source: specification, "Write messages": a deletion splices children to their ancestors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import schema
from .payloads import Payloads
from .sql import IDS_PER_QUERY, Database, marks, windows


def delete(
    db: Database, payloads: Payloads, session_id: str, ids: Iterable[str]
) -> dict[str, str | None]:
    """Delete rows; their children move to the nearest surviving ancestor.

    Returns: each deleted id with that ancestor (None: no ancestor survives).
    Cost: one scan of the session's keys; a row written per deleted row and moved child.
    """
    parents: dict[str, str | None] = {}
    for window in windows(dict.fromkeys(ids)):
        parents.update(
            db.execute(
                f"SELECT id, parent_id FROM {schema.MESSAGES}"
                f" WHERE session_id = ? AND id IN ({marks(len(window))})",
                (session_id, *window),
            ).fetchall()
        )
    if not parents:
        return {}
    survivors = _nearest_survivors(parents)
    moved = [
        (survivors[parent_id], session_id, child_id)
        for child_id, parent_id in _children_of(db, session_id, parents)
        if child_id not in parents
    ]
    for window_of_moves in windows(moved):
        db.executemany(
            f"UPDATE {schema.MESSAGES} SET parent_id = ? WHERE session_id = ? AND id = ?",
            window_of_moves,
        )
    orphans: set[str] = set()
    for window in windows(parents):
        keys, some = (session_id, *window), marks(len(window))
        orphans.update(
            row[0]
            for row in db.execute(
                f"SELECT hash FROM {schema.REFERENCES}"
                f" WHERE session_id = ? AND message_id IN ({some})",
                keys,
            )
        )
        for table, column in (
            (schema.MESSAGES, "id"),
            (schema.CONTINUATIONS, "id"),
            (schema.REFERENCES, "message_id"),
        ):
            db.execute(f"DELETE FROM {table} WHERE session_id = ? AND {column} IN ({some})", keys)
    payloads.collect(orphans)
    return survivors


def _children_of(
    db: Database, session_id: str, parents: Mapping[str, str | None]
) -> list[tuple[str, str]]:
    columns = f"SELECT id, parent_id FROM {schema.MESSAGES} WHERE session_id = ?"
    if len(parents) <= IDS_PER_QUERY:
        query = f"{columns} AND parent_id IN ({marks(len(parents))})"
        return list(db.execute(query, (session_id, *parents)))
    rows = db.execute(f"{columns} AND parent_id IS NOT NULL", (session_id,))
    return [row for row in rows if row[1] in parents]


def _nearest_survivors(parents: Mapping[str, str | None]) -> dict[str, str | None]:
    """For each deleted id, the nearest ancestor that is not deleted. A cycle has none."""
    survivors: dict[str, str | None] = {}
    for message_id in parents:
        chain: list[str] = []
        on_chain: set[str] = set()
        at: str | None = message_id
        while at is not None and at in parents and at not in survivors and at not in on_chain:
            chain.append(at)
            on_chain.add(at)
            at = parents[at]
        end = None if at in on_chain else at
        if at in survivors:
            end = survivors[at]
        for link in chain:
            survivors[link] = end
    return survivors
