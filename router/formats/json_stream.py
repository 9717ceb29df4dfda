"""A cursor over JSON text: walks into arrays and objects, takes one value at a time.

It cuts values out by their structure alone and leaves their meaning to the codec that the store
itself uses, so integers of any size, lone surrogates and key order arrive unchanged, and a
malformed value is one error with the rest of the text still readable. (The streaming parsers
considered, ijson and json-stream, refuse or alter a lone surrogate, and end at the first error.)

It holds one value, whatever the length of the text. It reads forwards only.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sessions_actor.codec import loads

READ_BYTES = 256 * 1024
VALUE_BYTES_MAX = 512 * 1024 * 1024

_SPACE = re.compile(rb"[ \t\r\n]*+")
_BOM = b"\xef\xbb\xbf"
# To the end of a string's text: its closing quote, or what is buffered so far.
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# Over everything that opens or closes nothing, whole strings included.
_TO_BRACKET = re.compile(
    rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+',
    re.DOTALL,
)
_SCALAR = re.compile(rb'[^ \t\r\n,:"{}\[\]]*+')
_CLOSERS = {ord("{"): ord("}"), ord("["): ord("]")}
_QUOTE, _SPACE_BYTE = ord('"'), ord(" ")

_T = TypeVar("_T")


class JsonTextError(ValueError):
    """The text is not JSON at this byte; what follows cannot be read."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason, self.offset = reason, offset

    def __str__(self) -> str:
        return f"{self.reason} at byte {self.offset:,}"


class TruncatedTextError(JsonTextError):
    """The text ends inside a value."""


class JsonCursor:
    """A position in JSON text that is read piece by piece.

    Args: `read(n)` returns at most n bytes, and none at the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()
        self._base = 0  # bytes of text before the buffer
        self._at = 0  # the position, in the buffer
        self._ended = False
        while len(self._buffer) < len(_BOM) and self._fill():
            pass
        if self._buffer.startswith(_BOM):
            self._at = len(_BOM)

    @property
    def offset(self) -> int:
        """The position in bytes from the beginning of the text."""
        return self._base + self._at

    def peek(self) -> str:
        """Return the next character that is no white space, "" at the end of the text."""
        if self._at < len(self._buffer) and self._buffer[self._at] > _SPACE_BYTE:
            return chr(self._buffer[self._at])  # the usual case, without a search
        while True:
            self._at = _end(_SPACE, self._buffer, self._at)
            if self._at < len(self._buffer):
                return chr(self._buffer[self._at])
            if not self._fill():
                return ""

    def documents(self) -> Iterator[int]:
        """Yield the number of each value of a text that holds several, one after another."""
        number = 0
        while self.peek():
            number += 1
            yield from self._visit(number)

    def items(self) -> Iterator[int]:
        """Enter an array: yield each item's number, from 1, with the position before the item.

        What the caller leaves unread is skipped. Raises: JsonTextError.
        """
        self._expect("[")
        number = 0
        while self.peek() != "]":
            if number:
                self._expect(",")
            number += 1
            yield from self._visit(number)
        self._expect("]")

    def members(self) -> Iterator[str]:
        """Enter an object: yield each key, with the position before its value.

        What the caller leaves unread is skipped. Raises: JsonTextError.
        """
        self._expect("{")
        first = True
        while self.peek() != "}":
            if not first:
                self._expect(",")
            first = False
            if self.peek() != '"':
                raise self._error("expected a key in quotes")
            at = self.offset
            try:
                key = loads(self.take())
            except JsonTextError:
                raise
            except ValueError:
                raise JsonTextError("expected a key in quotes", at) from None
            self._expect(":")
            yield from self._visit(key)
        self._expect("}")

    def value(self) -> Any:
        """Take the next value, parsed. Raises: ValueError when it is malformed (it is taken all the
        same), JsonTextError when its end cannot be found."""
        return loads(self.take())

    def take(self) -> bytes:
        """Take the next value's own text. Raises: JsonTextError when its end cannot be found."""
        first = self.peek()
        start = self.offset
        if first == '"':
            self._at += 1
            self._pass_string()
        elif first in ("{", "["):
            self._pass_brackets()
        else:
            self._pass_scalar(first)
        lead = start - self._base
        value = bytes(self._buffer[lead : self._at])
        self._drop_before(self._at)
        return value

    def _visit(self, label: _T) -> Iterator[_T]:
        self.peek()
        before = self.offset
        yield label
        if self.offset == before:
            self.take()

    def _pass_string(self) -> None:
        while True:
            self._at = _end(_STRING_REST, self._buffer, self._at)
            if self._at < len(self._buffer) and self._buffer[self._at] == _QUOTE:
                self._at += 1
                return
            self._need_more("a string")

    def _pass_brackets(self) -> None:
        open_brackets = bytearray()
        while True:
            self._at = _end(_TO_BRACKET, self._buffer, self._at)
            if self._at == len(self._buffer):
                self._need_more("an array or object")
                continue
            found = self._buffer[self._at]
            self._at += 1
            if found == _QUOTE:
                self._pass_string()
            elif found in _CLOSERS:
                open_brackets.append(found)
            elif _CLOSERS[open_brackets.pop()] != found:
                self._at -= 1
                raise self._error(f"unexpected {chr(found)!r}")
            elif not open_brackets:
                return

    def _pass_scalar(self, first: str) -> None:
        if not first:
            raise TruncatedTextError("the text ends where a value is due", self.offset)
        if first in ",:]}":
            raise self._error(f"unexpected {first!r}")
        while True:
            self._at = _end(_SCALAR, self._buffer, self._at)
            if self._at < len(self._buffer) or not self._fill():
                return

    def _expect(self, character: str) -> None:
        found = self.peek()
        if not found:
            raise TruncatedTextError(f"the text ends where {character!r} is due", self.offset)
        if found != character:
            raise self._error(f"expected {character!r}, found {found!r}")
        self._at += 1

    def _need_more(self, within: str) -> None:
        if not self._fill():
            raise TruncatedTextError(f"the text ends inside {within}", self._base + self._at)

    def _fill(self) -> bool:
        if self._ended:
            return False
        if len(self._buffer) > VALUE_BYTES_MAX:
            raise self._error(f"a value is longer than {VALUE_BYTES_MAX:,} bytes")
        data = self._read(READ_BYTES)
        self._ended = not data
        self._buffer += data
        return bool(data)

    def _drop_before(self, at: int) -> None:
        # Cheap for a bytearray, but not free: only when there is something to gain.
        if at >= READ_BYTES or at == len(self._buffer):
            del self._buffer[:at]
            self._base += at
            self._at -= at

    def _error(self, reason: str) -> JsonTextError:
        return JsonTextError(reason, self.offset)


def _end(pattern: re.Pattern[bytes], buffer: bytearray, at: int) -> int:
    # The match is not kept: a bytearray that a match looks into cannot grow.
    match = pattern.match(buffer, at)
    assert match is not None  # every pattern matches nothing, too
    return match.end()
