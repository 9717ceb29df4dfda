"""Every bound of one conversation, each with its unit and its relations.

Sizes are bytes unless a name says otherwise.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

# A row of the messages table or a continuation row: UTF-8 bytes of content.
ROW_BYTES_MAX = 3 * MIB // 2

# One fetch of history, and one pull over the wire: whichever bound comes first.
WINDOW_ROWS_MAX = 50
WINDOW_BYTES_MAX = 4 * MIB

# One row of an attachment's payload.
ATTACHMENT_CHUNK_BYTES = ROW_BYTES_MAX

# Levels below `parts` (level 0) at which an attachment is still recognised.
WALK_DEPTH_MAX = 8

# A conversation's name, UTF-8 bytes.
NAME_BYTES_MAX = 1024

# One conversation's file.
QUOTA_BYTES_DEFAULT = 10_000_000_000

# Earlier versions can corrupt a WAL file that two connections write.
SQLITE_VERSION_MIN = (3, 51, 3)

UTF8_CHARACTER_BYTES_MAX = 4


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of what is written with `source="client"`; None leaves one open.

    There is none unless someone sets it: how much a client may send is the application's to say.
    """

    message_bytes_max: int | None = None
    parts_max: int | None = None

    def __post_init__(self) -> None:
        for name in ("message_bytes_max", "parts_max"):
            limit = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit < 1):
                raise ValueError(f"client_{name}: a whole number from 1 on, or None")

    def tightened(self, other: "ClientLimits") -> "ClientLimits":
        """Return the bounds under which both hold."""
        return ClientLimits(
            _least(self.message_bytes_max, other.message_bytes_max),
            _least(self.parts_max, other.parts_max),
        )


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


NO_CLIENT_LIMITS = ClientLimits()

assert UTF8_CHARACTER_BYTES_MAX <= ROW_BYTES_MAX <= WINDOW_BYTES_MAX
assert ATTACHMENT_CHUNK_BYTES <= WINDOW_BYTES_MAX < QUOTA_BYTES_DEFAULT
assert WINDOW_ROWS_MAX >= 1
assert WALK_DEPTH_MAX >= 1
assert NAME_BYTES_MAX >= UTF8_CHARACTER_BYTES_MAX
