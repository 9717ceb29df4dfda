"""Every bound of one conversation, each with its unit and its relations.

Sizes are bytes unless a name says otherwise.
"""

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

assert UTF8_CHARACTER_BYTES_MAX <= ROW_BYTES_MAX <= WINDOW_BYTES_MAX
assert ATTACHMENT_CHUNK_BYTES <= WINDOW_BYTES_MAX < QUOTA_BYTES_DEFAULT
assert WINDOW_ROWS_MAX >= 1
assert WALK_DEPTH_MAX >= 1
assert NAME_BYTES_MAX >= UTF8_CHARACTER_BYTES_MAX
