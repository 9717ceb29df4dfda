"""What a conversation may be called, and the file its name leads to.

A name is any text of 1 to 1,024 UTF-8 bytes: slashes, dots, emoji and NUL included. The file's
name is a digest of it, so no name can escape the storage folder or meet a file system's rules.
"""

import hashlib

from .limits import NAME_BYTES_MAX


def check_name(name: object) -> bytes:
    """Return the name's UTF-8 bytes.

    Raises: ValueError unless it is a string of 1 to 1,024 UTF-8 bytes.
    """
    if not isinstance(name, str):
        raise ValueError(f"a conversation's name is a string, not {type(name).__name__}")
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise ValueError("a conversation's name holds a lone surrogate") from None
    if not 1 <= len(data) <= NAME_BYTES_MAX:
        raise ValueError(
            f"a conversation's name has 1 to {NAME_BYTES_MAX} bytes of UTF-8, this has {len(data)}"
        )
    return data


def file_stem(name: str) -> str:
    """Return `ab/abcd…`: a relative path without suffix, spread over 256 folders."""
    digest = hashlib.sha256(check_name(name)).hexdigest()
    return f"{digest[:2]}/{digest}"
