"""The parts of a multipart form (RFC 7578) one after the other, as they arrive: nothing is kept but a small field.

What could be wrong: the order of the parts is the form's. Our form sends its labels before its files; labels that come
after a file do not reach it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_PARTS = 100
_HEADER_BYTES = 4096
_BOUNDARY_BYTES = 200


class BrokenForm(Exception):
    """What arrives is no form, ends early, or is larger than a form may be."""


@dataclass(frozen=True, slots=True)
class Part:
    """One field or file; `content` must be read to its end before the next part comes.

    `filename` is None for a field; for a file it is the base name that the browser gave.
    """

    name: str
    filename: str | None
    content: AsyncIterator[bytes]

    async def field(self, most: int) -> str:
        """The value of a field.

        Raises:
            BrokenForm: it has more than `most` bytes, or is no text.
        """
        value = bytearray()
        async for piece in self.content:
            value += piece
            if len(value) > most:
                raise BrokenForm("a field is too long")
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BrokenForm("a field is no text") from error


async def parts(content_type: str, stream: AsyncIterator[bytes], unread: int) -> AsyncIterator[Part]:
    """The parts of a body; at most `unread` bytes of parts that nobody read to their end are passed over.

    Raises:
        BrokenForm: see there.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= _BOUNDARY_BYTES:
        raise BrokenForm("this is no multipart form")
    events = _events(boundary, stream)
    count = 0
    async for name, data in events:
        if name != "part":
            continue
        count += 1
        if count > _PARTS:
            raise BrokenForm("the form has too many parts")
        _, said = parse_options_header(data)
        filename = said.get(b"filename")
        content = _content(events)
        yield Part(_text(said.get(b"name", b"")), None if filename is None else _base(filename), content)
        async for piece in content:
            unread -= len(piece)
            if unread < 0:
                raise BrokenForm("a file that was refused is too long to be passed over")


async def _content(events: AsyncIterator[tuple[str, bytes]]) -> AsyncIterator[bytes]:
    async for name, data in events:
        if name == "end":
            return
        yield data


async def _events(boundary: bytes, stream: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """What the parser sees: ("part", its Content-Disposition), ("data", some bytes) and ("end", b"")."""
    reader = _Reader()
    parser = MultipartParser(boundary, reader.callbacks())
    try:
        async for piece in stream:
            parser.write(piece)
            for event in reader.taken():
                yield event
        parser.finalize()
    except MultipartParseError as error:
        raise BrokenForm("the form is not as a browser sends it") from error
    if not reader.ended:
        raise BrokenForm("the form ends too early")


class _Reader:
    """Collects what the parser calls back with."""

    def __init__(self) -> None:
        self.ended = False
        self._events: list[tuple[str, bytes]] = []
        self._field = bytearray()
        self._value = bytearray()
        self._disposition = b""

    def taken(self) -> list[tuple[str, bytes]]:
        events, self._events = self._events, []
        return events

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_field,
            "on_header_value": self._add_value,
            "on_header_end": self._header,
            "on_headers_finished": lambda: self._events.append(("part", self._disposition)),
            "on_part_data": lambda data, start, end: self._events.append(("data", bytes(data[start:end]))),
            "on_part_end": lambda: self._events.append(("end", b"")),
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._disposition = b""

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._grow(self._field, data[start:end])

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._grow(self._value, data[start:end])

    def _grow(self, buffer: bytearray, data: bytes) -> None:
        buffer += data
        if len(buffer) > _HEADER_BYTES:
            raise BrokenForm("a part of the form has too long a header")

    def _header(self) -> None:
        if bytes(self._field).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _end(self) -> None:
        self.ended = True


def _base(filename: bytes) -> str:
    """The base name of a file, whatever separates folders where it comes from."""
    return _text(filename).replace("\\", "/").rpartition("/")[2]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
