"""What a summary of a path may hide, decided from the rows as they are when it arrives.

Source: specification, "Compaction" and "Overlays".
"""

from __future__ import annotations

from ..overlays import COMPACTION_PREFIX
from ..records import CompactResult
from .paths import endpoints, survey
from .store import Store


def plan_compaction(
    store: Store, session_id: str, leaf_id: str, result: CompactResult
) -> CompactResult | None:
    """Decide what a summariser's result hides, or refuse it: None.

    The new overlay starts where the first one of the path started. Refused: an end that the
    path (as the summariser saw it) does not hold, a range that hides no message anew.
    """
    if not store.exists(session_id, leaf_id):
        leaf_id = store.tail(session_id).leaf_id or ""
    overlays = store.compactions(session_id)
    ends = {result.from_message_id, result.to_message_id}
    found = survey(store, session_id, leaf_id, wanted=endpoints(overlays) | ends)
    spans = found.spans(overlays)
    by_message = {COMPACTION_PREFIX + s.compaction.id: s for s in spans}

    def place(message_id: str) -> tuple[int, int] | None:
        """First and last index on the path of a message in view."""
        if span := by_message.get(message_id):
            return span.start, span.end
        depth = found.marks.get(message_id)
        if depth is None or store.is_overlay(session_id, message_id):
            return None
        index = found.length - 1 - depth
        if any(span.start <= index <= span.end for span in spans):
            return None
        return index, index

    first, last = place(result.from_message_id), place(result.to_message_id)
    from_id, to_id = result.from_message_id, result.to_message_id
    while first and from_id.startswith(COMPACTION_PREFIX) and from_id not in by_message:
        # A summary that was imported is the only copy of what it tells: it stays in view.
        if first[0] + 1 >= found.length:
            return None
        from_id = found.id_at(store, session_id, found.length - 2 - first[0])
        first = place(from_id) or (first[0] + 1, first[0] + 1)
    if last is None or (first is None and not spans):
        return None
    start = min(([first[0]] if first else []) + ([spans[0].start] if spans else []))
    covered = [s for s in spans if start <= s.start and s.end <= last[1]]
    if last[1] - start + 1 <= sum(s.end - s.start + 1 for s in covered):
        return None
    if spans and start == spans[0].start:
        from_id = spans[0].compaction.from_message_id
    if to_id in by_message:
        to_id = by_message[to_id].compaction.to_message_id
    return CompactResult(result.summary, from_id, to_id)
