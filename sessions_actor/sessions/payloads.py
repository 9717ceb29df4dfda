"""Payloads outside the messages: stored once under their SHA-256, kept while a message holds them.

Reading puts them back. Writes run inside an operation, together with the row that holds them.

Source: specification, "Attachments".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..attachments import Payload, count_pointers, may_hold_pointer, restore
from ..codec import dumps, loads
from ..limits import ATTACHMENT_CHUNK_BYTES
from ..messages import SessionMessage
from . import schema
from .sql import Database, marks, windows


class Payloads:
    """The payloads of one file and who refers to them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def bytes_of(self, session_id: str, message_id: str, text: bytes) -> int:
        """Base64 size of what a read of the message puts back, each place counted."""
        sizes = self._reference_sizes(session_id, message_id)
        try:
            places = count_pointers(loads(text), sizes)
        except (ValueError, AttributeError, TypeError, KeyError):
            places = {}  # a damaged row of a foreign file: it reads as nothing
        return sum(sizes[digest] * count for digest, count in places.items())

    def _reference_sizes(self, session_id: str, message_id: str) -> dict[str, int]:
        return dict(
            self._db.execute(
                f"SELECT r.hash, (p.bytes + 2) / 3 * 4 FROM {schema.REFERENCES} r"
                f" JOIN {schema.PAYLOADS} p ON p.hash = r.hash"
                " WHERE r.session_id = ? AND r.message_id = ?",
                (session_id, message_id),
            ).fetchall()
        )

    def inline(self, session_id: str, message_id: str, text: bytes) -> bytes:
        """Put a stored message's payloads back. A text without pointers comes back as it is."""
        if not may_hold_pointer(text):
            return text
        message = loads(text)
        restored = self.restored(session_id, message_id, message)
        return text if restored is message else dumps(restored)

    def restored(self, session_id: str, message_id: str, message: SessionMessage) -> SessionMessage:
        """Put a stored message's payloads back; the same object when it holds none."""
        held = [
            row[0]
            for row in self._db.execute(
                f"SELECT hash FROM {schema.REFERENCES} WHERE session_id = ? AND message_id = ?",
                (session_id, message_id),
            )
        ]
        loaded: dict[str, bytes | None] = {}

        def load(digest: str) -> bytes | None:
            if digest not in loaded:
                loaded[digest] = self.read(digest)
            return loaded[digest]

        return restore(message, load, held)

    def read(self, digest: str) -> bytes | None:
        """Read one payload; None when it is not stored. Cost: a row per 1.5 MiB."""
        query = f"SELECT bytes FROM {schema.PAYLOADS} WHERE hash = ?"
        if self._db.execute(query, (digest,)).fetchone() is None:
            return None
        query = f"SELECT data FROM {schema.PAYLOAD_CHUNKS} WHERE hash = ? ORDER BY idx"
        return b"".join(row[0] for row in self._db.execute(query, (digest,)))

    def put(self, digest: str, payload: Payload) -> None:
        """Store a payload once. Cost: a row per 1.5 MiB and one for the record."""
        query = f"SELECT 1 FROM {schema.PAYLOADS} WHERE hash = ?"
        if self._db.execute(query, (digest,)).fetchone() is not None:
            return
        data, count = payload.data, 0
        for start in range(0, len(data), ATTACHMENT_CHUNK_BYTES):
            self._db.execute(
                f"INSERT INTO {schema.PAYLOAD_CHUNKS} (hash, idx, data) VALUES (?, ?, ?)",
                (digest, count, data[start : start + ATTACHMENT_CHUNK_BYTES]),
            )
            count += 1
        self._db.execute(
            f"INSERT INTO {schema.PAYLOADS} (hash, bytes, media_type, chunks) VALUES (?, ?, ?, ?)",
            (digest, len(data), payload.media_type, count),
        )

    def collect(self, digests: Iterable[str]) -> None:
        """Delete the payloads among these that no message refers to."""
        wanted = set(digests)
        for window in windows(sorted(wanted)):
            held = self._db.execute(
                f"SELECT DISTINCT hash FROM {schema.REFERENCES}"
                f" WHERE hash IN ({marks(len(window))})",
                tuple(window),
            )
            wanted.difference_update(row[0] for row in held.fetchall())
        for digest in sorted(wanted):
            self._db.execute(f"DELETE FROM {schema.PAYLOAD_CHUNKS} WHERE hash = ?", (digest,))
            self._db.execute(f"DELETE FROM {schema.PAYLOADS} WHERE hash = ?", (digest,))

    def refer(self, session_id: str, message_id: str, digest: str) -> None:
        """Note that a message holds a payload."""
        self._db.execute(
            f"INSERT OR IGNORE INTO {schema.REFERENCES} (session_id, message_id, hash)"
            " VALUES (?, ?, ?)",
            (session_id, message_id, digest),
        )

    def replace_references(
        self, session_id: str, message_id: str, references: Sequence[str]
    ) -> None:
        """Point a message at exactly these payloads; collect what that leaves alone."""
        held = {
            found[0]
            for found in self._db.execute(
                f"SELECT hash FROM {schema.REFERENCES} WHERE session_id = ? AND message_id = ?",
                (session_id, message_id),
            )
        }
        dropped = held.difference(references)
        for digest in sorted(dropped):
            self._db.execute(
                f"DELETE FROM {schema.REFERENCES}"
                " WHERE session_id = ? AND message_id = ? AND hash = ?",
                (session_id, message_id, digest),
            )
        for digest in references:
            if digest not in held:
                self.refer(session_id, message_id, digest)
        self.collect(dropped)
