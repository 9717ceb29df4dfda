"""Making a message ready to be written: all that takes work and touches nothing.

Source: specification, "Write messages": sanitise, strip reserved metadata, extract, split.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from ..attachments import count_pointers, extract
from ..chunks import split_utf8
from ..codec import dumps
from ..limits import NO_CLIENT_LIMITS, ROW_BYTES_MAX, ClientLimits
from ..messages import SessionMessage, sanitize, strip_reserved, validate_message
from ..tokens import estimate_message
from .sql import is_text
from .store import NewRow


class Prepared(NamedTuple):
    """A message ready to be written: all that takes work and touches nothing.

    `excess` says which limit of client input it passes; it may still turn out to be known.
    """

    message: SessionMessage
    row: NewRow
    stored: SessionMessage
    row_bytes: int
    excess: str | None = None

    def require_size(self) -> None:
        """Refuse what a client may not write.

        Raises: ValueError naming the limit.
        """
        if self.excess is not None:
            raise ValueError(self.excess)


def slices_of(text: bytes) -> list[bytes]:
    """Cut a stored message into what its row and continuation rows hold."""
    return [text] if len(text) <= ROW_BYTES_MAX else split_utf8(text, ROW_BYTES_MAX)


def stored_row(message: SessionMessage) -> tuple[NewRow, SessionMessage, int]:
    """Turn a checked message into its row: extract payloads, serialise, split, stamp.

    Returns: the row, the stored form as a tree, and the row's bytes as a budget counts them.
    Raises: TypeError for a value that JSON cannot hold, naming its place.
    """
    extracted = extract(message)
    text = dumps(extracted.message)
    slices = [piece.decode() for piece in slices_of(text)]
    size = len(text)
    if extracted.payloads:
        for digest, places in count_pointers(extracted.message, extracted.payloads).items():
            size += (len(extracted.payloads[digest].data) + 2) // 3 * 4 * places
    row = NewRow(
        message["id"],
        message["role"],
        slices,
        extracted.payloads,
        extracted.references,
        estimate_message(message),
        hashlib.sha256(text).hexdigest(),
    )
    return row, extracted.message, size


def prepare(
    message: SessionMessage,
    source: str,
    reserved_metadata_keys: Collection[str],
    client_limits: ClientLimits = NO_CLIENT_LIMITS,
) -> Prepared:
    """Run the write pipeline up to the transaction: check, sanitise, strip, extract, split.

    A client's message that passes a limit is marked, not refused: clients post transcripts back,
    and what is stored already writes nothing.

    Raises: ValueError naming the field; TypeError naming the place of what is not JSON.
    """
    validate_message(message)
    excess = _excess(message, client_limits) if source == "client" else None
    message = sanitize(message)
    if source == "client":
        message = strip_reserved(message, reserved_metadata_keys)
    return Prepared(message, *stored_row(message), excess=excess)


def _excess(message: SessionMessage, limits: ClientLimits) -> str | None:
    """Say which limit a message passes as it was sent, payloads inline."""
    parts = len(message["parts"])
    if limits.parts_max is not None and parts > limits.parts_max:
        return f"message.parts: {parts:,} parts, client_parts_max is {limits.parts_max:,}"
    if limits.message_bytes_max is not None:
        size = len(dumps(message))
        if size > limits.message_bytes_max:
            allowed = limits.message_bytes_max
            return f"message: {size:,} bytes of JSON, client_message_bytes_max is {allowed:,}"
    return None


def prepare_import(message: SessionMessage, parent_id: str | None, created_at: float) -> Prepared:
    """Check one historical message; it is kept as it is.

    Raises: ValueError naming the field, parent_id and created_at included.
    """
    validate_message(message)
    if parent_id is not None and not is_text(parent_id):
        raise ValueError("parent_id: neither None nor a string that UTF-8 can hold")
    if isinstance(created_at, bool) or not isinstance(created_at, int | float):
        raise ValueError("created_at: give the message's time in milliseconds")
    if not math.isfinite(created_at) or abs(created_at) >= 2**63:
        raise ValueError(f"created_at: {created_at} is no time in milliseconds")
    return Prepared(message, *stored_row(message))


def as_sequence(messages: Iterable[Any], what: str) -> Sequence[Any]:
    """Take any iterable of items but a string or an object.

    Raises: TypeError saying what to pass.
    """
    if isinstance(messages, str | bytes | dict):
        raise TypeError(f"{what}: give a list, not {type(messages).__name__}")
    return list(messages)
