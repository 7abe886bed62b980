"""Looks at a body as it arrives: is this a trace, and is it of a size and a shape that may be stored?

Nothing is parsed here. The text is unpacked in pieces of bounded size and only quotes and brackets are looked at, so
that a bomb is known before it is stored, at hundreds of megabytes a second.

What could be wrong: a backslash before a quote hides the quote also outside a string, where JSON has none; such a text
can deceive the count of nested brackets. The analysis therefore runs under limits of its own. What follows a damaged
spot in a compressed file is not looked at; the reader does not read it either.
"""

from __future__ import annotations

import codecs
import json
import re

import numpy as np
from numpy.typing import NDArray

from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.settings import Limits
from traceanalyzer.trace.collector import read_block, section, word
from traceanalyzer.trace.refuse import refuse_binary
from traceanalyzer.trace.unpack import Unpacker, magic_of

_HEAD = 512
_BATCH = 1 << 18
_ZSTD_WINDOW = 8 << 20
_TAIL = 1 << 16
"""Redaction writes what it did behind the events, so the end of a text says whether it ran."""
_OWN_BLOCK = re.compile(rb'"traceanalyzer"\s*:\s*(?=\{)')
_DECODER = json.JSONDecoder()
_FREE_TEXT = 4 << 20
"""Text below this size has no ratio to keep: a small trace may repeat itself."""
_NO_MARKS = bytes(code for code in range(256) if code not in b'"{}[]')
_QUOTE, _OPEN_OBJECT, _OPEN_LIST = b'"{['


class Inspection:
    """What is known of one body so far.

    Args:
        limits: what is allowed.
    """

    def __init__(self, limits: Limits) -> None:
        """Nothing has arrived."""
        self.bytes = 0
        self.text_bytes = 0
        self._limits = limits
        self._first = b""
        self._unpacker: Unpacker | None = None
        self._started = False
        self._shape = Shape(limits)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._tail = b""

    @property
    def redaction(self) -> str | None:
        """How far the file says it was redacted, once the body has ended; None where it says nothing."""
        found = list(_OWN_BLOCK.finditer(self._tail))
        if not found:
            return None
        try:
            block, _ = _DECODER.raw_decode(self._tail[found[-1].end() :].decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
        return word(section(read_block(block)[0], "redaction"), "level")

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the body.

        Raises:
            Problem: 413, 415 or 422: the body may not be stored.
        """
        self.bytes += len(data)
        if self.bytes > self._limits.max_body_bytes:
            raise Problem(413, f"a trace may have {self._limits.max_body_bytes} bytes")
        if not self._started:
            self._first += data
            if len(self._first) < _HEAD:
                return
            data = self._start()
        self._unpack(data)

    def finish(self) -> None:
        """Look at what is left; the body has ended.

        Raises:
            Problem: as `feed`; also 400 for an empty body.
        """
        if not self.bytes:
            raise Problem(400, "the body is empty")
        if not self._started:
            self._unpack(self._start())
        self._flush()
        self._shape.finish()

    def _start(self) -> bytes:
        self._started = True
        first, self._first = self._first, b""
        magic = magic_of(first)
        if magic:
            self._unpacker = Unpacker(magic, _ZSTD_WINDOW)
        return first

    def _unpack(self, data: bytes) -> None:
        if self._unpacker is None:
            self._take(data)
            return
        for text in self._unpacker.feed(data):
            self._take(text)
        if self._unpacker.members > self._limits.max_members:
            raise Problem(413, f"a compressed file may have {self._limits.max_members} members")

    def _take(self, text: bytes) -> None:
        self.text_bytes += len(text)
        if self.text_bytes > self._limits.max_text_bytes:
            raise Problem(413, f"a trace may have {self._limits.max_text_bytes} bytes of text")
        if self.text_bytes > max(_FREE_TEXT, self._limits.max_ratio * self.bytes):
            raise Problem(
                413, f"the text is more than {self._limits.max_ratio:g} times as large as the compressed file"
            )
        self._pending.append(text)
        self._pending_bytes += len(text)
        if self._pending_bytes >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        text = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._shape.feed(text)
        self._tail = text[-_TAIL:] if len(text) >= _TAIL else (self._tail + text)[-_TAIL:]


class Shape:
    """The nesting, the strings and the number of events of a JSON text that arrives in pieces.

    Args:
        limits: what is allowed.
    """

    def __init__(self, limits: Limits) -> None:
        """Nothing has arrived."""
        self.events = 0
        self._limits = limits
        self._head = b""
        self._event_depth = 0
        self._depth = 0
        self._in_string = False
        self._string_bytes = 0
        self._backslash = b""

    def feed(self, text: bytes) -> None:
        """Look at the next piece.

        Raises:
            Problem: 413, 415 or 422.
        """
        if self._event_depth:
            self._scan(text)
            return
        self._head += text
        if len(self._head) >= _HEAD:
            self._begin()

    def finish(self) -> None:
        """The text has ended.

        Raises:
            Problem: as `feed`.
        """
        if not self._event_depth:
            self._begin()

    def _begin(self) -> None:
        text, self._head = self._head.removeprefix(codecs.BOM_UTF8).lstrip(), b""
        try:
            refuse_binary("the body", text)
        except TraceAnalyzerError as error:
            raise Problem(415, str(error)) from error
        if not text.startswith((b"{", b"[")):
            raise Problem(415, "the body holds no JSON")
        # Events are objects in the list of an object, or in the outermost list.
        self._event_depth = 3 if text.startswith(b"{") else 2
        self._scan(text)

    def _scan(self, text: bytes) -> None:
        # A string that is too long covers a whole piece of half its size, so that only the ends of pieces matter.
        size = max(1, min(_BATCH, self._limits.max_string_bytes // 2))
        for begin in range(0, len(text), size):
            self._look(self._without_escapes(text[begin : begin + size]))

    def _look(self, text: bytes) -> None:
        first = text.find(b'"')
        self._string_bytes += (len(text) if first < 0 else first) * self._in_string
        if self._string_bytes > self._limits.max_string_bytes:
            raise Problem(422, f"a string may have {self._limits.max_string_bytes} bytes")
        marks = np.frombuffer(text.translate(None, _NO_MARKS).replace(b'""', b""), np.uint8)
        quotes = marks == _QUOTE
        # Which marks stand outside a string: those that an even number of quotes comes before.
        outside = ((np.cumsum(quotes) + self._in_string) & 1) == 0
        self._nesting(marks[outside & ~quotes])
        self._in_string ^= bool(np.count_nonzero(quotes) & 1)
        if first >= 0:
            self._string_bytes = (len(text) - text.rfind(b'"') - 1) * self._in_string

    def _without_escapes(self, text: bytes) -> bytes:
        """The text with its escaped backslashes and quotes made harmless; lengths stay."""
        text, self._backslash = self._backslash + text, b""
        if b"\\" not in text:
            return text
        if (len(text) - len(text.rstrip(b"\\"))) % 2:
            text, self._backslash = text[:-1], b"\\"
        return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")

    def _nesting(self, brackets: NDArray[np.uint8]) -> None:
        if not len(brackets):
            return
        objects = brackets == _OPEN_OBJECT
        opens = objects | (brackets == _OPEN_LIST)
        depth = self._depth + np.cumsum(np.where(opens, 1, -1))
        # A bracket that closes nothing does not pay for later ones.
        depth -= np.minimum(np.minimum.accumulate(depth), 0)
        if int(depth.max()) > self._limits.max_depth:
            raise Problem(422, f"lists and objects may be nested {self._limits.max_depth} deep")
        self._depth = int(depth[-1])
        self.events += int(np.count_nonzero(objects & (depth == self._event_depth)))
        if self.events > self._limits.max_events:
            raise Problem(413, f"a trace may have {self._limits.max_events} events")
