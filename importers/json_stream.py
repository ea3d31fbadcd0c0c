"""JSON documents of any length, item by item: neither the text nor the document is ever whole in memory.

The standard library's scanner (C) decodes one item at a time. It beats the alternatives here: orjson needs the whole
document and rounds time stamps to doubles (a quarter of a microsecond, where they count from 1970); ijson makes Python
calls for every value and names no place of a fault. Numbers with a point stay text (`parse_float=str`).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NoReturn

from phantora.errors import UserError

_CHUNK_BYTES = 1 << 20
_MAX_ITEM_CHARS = 1 << 24  # one event, or one member beside the events
_MAX_ITEMS = 50_000_000
_SPACE = re.compile(r"[ \t\n\r]*")
_NEAR_END = 1 << 12  # a fault this near to the end of what has been read may be its end
_MAX_TEXT_OF_NUMBER = 40
LIST_BEGINS = object()


class JsonStream:
    """One JSON document. UserError names the file, line and character of what is wrong in it."""

    def __init__(self, file: BinaryIO, shown: str) -> None:
        self.shown = shown
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")("strict").decode
        self._scan = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        self._text = ""
        self._at = 0
        self._chars_before = 0  # of the part of the text that is no longer held
        self._lines_before = 0
        self._bytes_read = 0
        self._ended = False

    def members(self, lists: Collection[str]) -> Iterator[tuple[str, Any]]:
        """(key, value) of a document that is an object; of lists named in `lists` (key, LIST_BEGINS) and (key, item)s.

        A document that is a list yields ("", item). Members that are not in `lists` must be small.
        """
        first = self._next_char()
        if first == "[":
            yield "", LIST_BEGINS
            yield from (("", item) for item in self._items())
        elif first == "{":
            yield from self._object(lists)
        else:
            self._fail("a JSON object or list must begin here" if first else "the file is empty")
        if self._next_char():
            self._fail("the document has ended, but the file goes on")

    def _object(self, lists: Collection[str]) -> Iterator[tuple[str, Any]]:
        self._at += 1
        if self._next_char() == "}":
            self._at += 1
            return
        while True:
            if self._next_char() != '"':
                self._fail("a key in double quotes must stand here")
            key = self._value()
            self._expect(":")
            if key in lists and self._next_char() == "[":
                yield key, LIST_BEGINS
                yield from ((key, item) for item in self._items())
            else:
                self._next_char()
                yield key, self._value()
            if self._expect(",}") == "}":
                return

    def _items(self) -> Iterator[Any]:
        self._at += 1
        if self._next_char() == "]":
            self._at += 1
            return
        for _ in range(_MAX_ITEMS):
            yield self._value()
            if self._expect(",]") == "]":
                return
            self._next_char()
        self._fail(f"more than {_MAX_ITEMS:,} items")

    def _expect(self, chars: str) -> str:
        char = self._next_char()
        if not char or char not in chars:
            wanted = " or ".join(chars)
            self._fail(f"{wanted} must stand here" if char else f"the file is cut off: {wanted} is missing")
        self._at += 1
        return char

    def _next_char(self) -> str:
        """Skip white space; the character there, '' at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill(_CHUNK_BYTES):
                return ""

    def _value(self) -> Any:
        """The value that begins at the present place."""
        want = _CHUNK_BYTES
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                self._judge(error)
            except RecursionError:
                self._fail("values are nested too deeply")
            except ValueError as error:  # a number of thousands of digits
                self._fail(str(error))
            if len(self._text) - self._at > _MAX_ITEM_CHARS:
                self._fail(f"one item of more than {_MAX_ITEM_CHARS:,} characters")
            self._fill(want)
            want *= 2

    def _judge(self, error: json.JSONDecodeError) -> None:
        """Fail, unless what follows in the file may mend it."""
        is_open = error.msg.startswith("Unterminated string")
        if self._ended:
            is_cut = is_open or error.pos >= len(self._text.rstrip())
            self._fail("the file is cut off here" if is_cut else error.msg, error.pos)
        if not is_open and len(self._text) - error.pos > _NEAR_END:
            self._fail(error.msg, error.pos)

    def _fill(self, num_bytes: int) -> bool:
        """Read on; False at the end of the file."""
        if self._ended:
            return False
        try:
            data = self._file.read(num_bytes)
            text = self._decode(data, not data)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.shown}: not UTF-8 text near byte {self._bytes_read + error.start} ({error.reason})"
            ) from None
        except (OSError, EOFError, ValueError) as error:  # of gzip, and of disks
            raise UserError(f"{self.shown}: cannot be read after byte {self._bytes_read}: {error}") from None
        except Exception as error:  # zlib.error, tarfile.ReadError: no common base class
            if type(error).__module__ not in ("zlib", "tarfile", "_lzma"):
                raise
            raise UserError(f"{self.shown}: cannot be unpacked after byte {self._bytes_read}: {error}") from None
        self._bytes_read += len(data)
        self._ended = not data
        self._chars_before += self._at
        self._lines_before += self._text.count("\n", 0, self._at)
        self._text, self._at = self._text[self._at :] + text, 0
        return not self._ended

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        at = min(self._at if at is None else at, len(self._text))
        line = self._lines_before + self._text.count("\n", 0, at) + 1
        raise UserError(f"{self.shown}:{line}: not valid JSON at character {self._chars_before + at}: {what}")


def whole_number(value: Any, low: int = -(1 << 62), high: int = 1 << 62) -> int | None:
    """An integer (or the text of one) between low and high; None for anything else."""
    if isinstance(value, str):
        body = value[1:] if value[:1] == "-" else value
        if len(body) > _MAX_TEXT_OF_NUMBER or not (body.isascii() and body.isdigit()):
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if low <= value <= high else None


def microseconds_as_ns(value: Any) -> int | None:
    """A number of microseconds (an integer, or decimal text) as whole nanoseconds; None for anything else."""
    if isinstance(value, str):
        whole, point, fraction = value.partition(".")
        if point and len(value) <= _MAX_TEXT_OF_NUMBER and fraction.isascii() and fraction.isdigit():
            start = whole_number(whole)
            if start is None:
                return None
            part = int((fraction + "000")[:3])
            return start * 1000 + (-part if whole[:1] == "-" else part) if abs(start) < 1 << 52 else None
        try:
            number = float(value) * 1000 if len(value) <= _MAX_TEXT_OF_NUMBER else float("nan")
        except ValueError:
            return None
        return round(number) if abs(number) < 1 << 62 else None
    number_us = whole_number(value, -(1 << 52), 1 << 52)
    return None if number_us is None else number_us * 1000


def clean_text(value: Any) -> str:
    """Text that can be written as UTF-8 (JSON can say half characters)."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
