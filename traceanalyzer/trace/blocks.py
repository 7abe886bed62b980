"""Cuts the text of a trace into its header, blocks of whole events, and its footer.

A block is cut at the last place that looks like the end of one event and the beginning of the next, in any layout of
JSON; that the cut is right is proved by the block decoding as a list (a cut inside an event or a string leaves brackets
or quotes open). Memory is one block and its events. What could be wrong: a trace whose events hold the text
`"traceEvents": [` as a key of their own before the real list would begin there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

from traceanalyzer.trace import notes
from traceanalyzer.trace.events import decode_known
from traceanalyzer.trace.salvage import BOUNDARY, DAMAGE, LAST_EVENT_END, Events, check_utf8, decode, salvage

BLOCK_BYTES = 1 << 21
"""How much text is decoded at once."""

_METADATA_BYTES = 1 << 24
_LONGEST_HEADER = 1 << 26
_LONGEST_EVENT = 1 << 26
_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_OVERLAP = 256
_FILLER = b", \t\r\n"
_WINDOW = 1 << 12
_MOST_VAIN = 8
"""After as many blocks in a row with odd events, the rest of the trace is not expected to be without."""


class EventBlocks:
    """Iterates over the blocks of events of one trace text.

    After the iteration `header` and `footer` hold the text before and after the event list (the first 16 MiB of each),
    `found` whether there was a list at all, in the first 64 MiB, `closed` whether its end was met and `exhausted`
    whether the text ended.

    Args:
        chunks: the text, UTF-8, in pieces of any size.
        book: where damage is noted.
        block_bytes: how much text to decode at once.
        typed: decode events to structs where nothing about them is odd; False gives the JSON of all as it stands.
    """

    def __init__(
        self, chunks: Iterable[bytes], book: notes.NoteBook, block_bytes: int = BLOCK_BYTES, typed: bool = True
    ) -> None:
        """Nothing is read before the iteration begins."""
        self.header = b""
        self.footer = b""
        self.found = False
        self.closed = False
        self.exhausted = False
        self._chunks = iter(chunks)
        self._book = book
        self._block = block_bytes
        self._buffer = b""
        self._vain = 0 if typed else _MOST_VAIN

    def __iter__(self) -> Iterator[Events]:
        """The blocks, once."""
        self._find_list()
        if not self.found:
            return
        size = self._block
        while not self.closed:
            self._fill(size)
            self._buffer = self._buffer.lstrip(_FILLER)
            if self._buffer.startswith(b"]"):
                self.closed, self._buffer = True, self._buffer[1:]
                break
            if self.exhausted and not self._buffer:
                break
            piece, following, final = self._cut(size)
            events = self._ending() if piece is None else self._decoded(piece, final)
            if events is None:
                size = self._grow(size)
                continue
            self.closed = events.ended
            self._buffer = events.rest + following
            if events.raws or events.structs:
                yield events
            size = min(2 * max(size, len(self._buffer)), _LONGEST_EVENT) if events.rest else self._block
            if final:
                break
        if not self.closed:
            self._book.add(notes.TRUNCATED_JSON)
        self._read_footer()

    @property
    def whole(self) -> bool:
        """Whether a text without an event list ended as JSON does."""
        return self.header.rstrip().endswith((b"}", b"]")) or not self.exhausted

    def _fill(self, size: int) -> None:
        """Read until the buffer holds `size` bytes or the text ends."""
        if len(self._buffer) >= size:
            return
        parts, held = [self._buffer], len(self._buffer)
        while held < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.exhausted = True
                break
            parts.append(chunk)
            held += len(chunk)
        self._buffer = b"".join(parts)

    def _find_list(self) -> None:
        self._fill(_OVERLAP)
        text = self._buffer.lstrip()
        if text.startswith(b"["):
            self.found, self._buffer = True, text[1:]
            return
        searched = dropped = 0
        kept: list[bytes] = []
        while True:
            if match := _LIST_START.search(self._buffer, searched):
                kept.append(self._buffer[: match.start()])
                self._buffer = self._buffer[match.end() :]
                self.found = True
                break
            if self.exhausted or dropped > _LONGEST_HEADER:
                kept.append(self._buffer)
                break
            searched = max(0, len(self._buffer) - _OVERLAP)
            if len(self._buffer) > _METADATA_BYTES:
                if not kept:
                    kept.append(self._buffer[:searched])
                dropped += searched
                self._buffer, searched = self._buffer[searched:], 0
            self._fill(len(self._buffer) + self._block)
        self.header = kept[0]

    def _cut(self, size: int) -> tuple[bytes | None, bytes, bool]:
        """A piece that ends with an event, what follows it, and whether the piece is the last of the text."""
        if self.exhausted and len(self._buffer) <= size:
            return self._buffer.rstrip(_FILLER), b"", True
        window = _WINDOW
        while True:
            begin = max(0, len(self._buffer) - window)
            if last := next(iter(deque(BOUNDARY.finditer(self._buffer, begin), maxlen=1)), None):
                return self._buffer[: last.start() + 1], self._buffer[last.start() + 1 :], False
            if begin == 0:
                return (self._buffer.rstrip(_FILLER), b"", True) if self.exhausted else (None, b"", False)
            window *= 16

    def _decoded(self, piece: bytes, final: bool) -> Events:
        if self._vain < _MOST_VAIN:
            try:
                check_utf8(piece)
                known = Events(structs=decode_known(piece))
            except DAMAGE:
                self._vain += 1
            else:
                self._vain = 0
                return known
        try:
            return decode(piece)
        except DAMAGE:
            return salvage(piece, self._book, final or len(self._buffer) >= _LONGEST_EVENT)

    def _ending(self) -> Events | None:
        """The last events, where the list ends in the buffer and a long footer follows."""
        if not LAST_EVENT_END.search(self._buffer):
            return None
        try:
            events = decode(self._buffer)
        except DAMAGE:
            return None
        return events if events.ended else None

    def _grow(self, size: int) -> int:
        """Room for an event longer than a block; one beyond all reason is passed over."""
        if len(self._buffer) < _LONGEST_EVENT:
            return min(2 * max(size, len(self._buffer)), _LONGEST_EVENT)
        while not (boundary := BOUNDARY.search(self._buffer)) and not self.exhausted:
            self._buffer = self._buffer[-_OVERLAP:]
            self._fill(_OVERLAP + self._block)
        if boundary:
            self._book.add(notes.DAMAGED_EVENTS)
            self._buffer = self._buffer[boundary.end() :]
        return self._block

    def _read_footer(self) -> None:
        self._fill(_METADATA_BYTES)
        self.footer = self._buffer[:_METADATA_BYTES]
        self._buffer = b""
        for _ in self._chunks:
            pass
