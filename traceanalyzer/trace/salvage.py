"""Decodes a piece of an event list into raw events, and recovers what is whole from a damaged piece.

A piece that does not decode is split where one event seems to end and the next to begin. Runs of such segments that
decode are taken as they are. A segment that does not is repaired (control characters, bytes that are no UTF-8, bare
NaN and inf, bad escapes), joined with its successors where it only seems unfinished (a list of objects inside an event
looks like a boundary), or dropped and counted. What could be wrong: an event is dropped whole even if only one field
is beyond repair, and a damaged event that holds such a list counts as several.
"""

from __future__ import annotations

import codecs
import re
from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from traceanalyzer.trace import notes

BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
"""Where an event seems to end and another to begin."""
LAST_EVENT_END = re.compile(rb"\}\s*(\]\s*(?:,\s*\"|\}|\Z))")
"""Where the last event of a list and the list seem to end."""

_RUN = 1 << 16
_LONGEST_EVENT = 1 << 22
_EFFORT = 8
"""How many times the length of a piece (or of a run) is decoded in vain for events that only seem unfinished."""
_BYTE = re.compile(r"\(byte (\d+)\)")
_WORD = 64
_LAST_WORD = re.compile(rb"[\w.+-]+\Z")
_RESUMES = 4
_EVENT_START = re.compile(rb'\{\s*"(?:ph|cat|name|pid|tid|ts|id)"\s*:')
_LIST_END = re.compile(rb"\]\s*(?:,\s*\"|\}|\Z)")
_TOKEN = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|[-+]?\b(?:nan|inf(?:inity)?)\b(?:\([a-z]*\))?|[-+]?\b1\.#[a-z]+', re.DOTALL | re.IGNORECASE
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL
)  # fmt: skip
_GOOD_ESCAPES = tuple(b"\\" + bytes([char]) for char in b'"\\/bfnrt')
_REPLACEMENT = "\ufffd".encode()


class _Head(msgspec.Struct, gc=False):
    cat: str | None = None


_raw = msgspec.json.Decoder(msgspec.Raw)
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_head_list = msgspec.json.Decoder(list[_Head])
DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is no JSON of the expected type, no UTF-8, or nested beyond all reason."""


@dataclass
class Events:
    """Whole events in file order: their JSON texts and categories, and what follows them in the piece.

    Where nothing about them is odd, `structs` holds the events themselves instead, each in the type of its category.
    `ended`: the closing bracket of the list was found and `rest` begins after it; otherwise `rest` is an unfinished
    event.
    """

    raws: list[msgspec.Raw] = field(default_factory=list)
    categories: list[str | None] = field(default_factory=list)
    structs: list[msgspec.Struct] = field(default_factory=list)
    rest: bytes = b""
    ended: bool = False

    def extend(self, more: Events) -> None:
        """Append the events of `more`, which follow in the file."""
        self.raws += more.raws
        self.categories += more.categories
        self.rest, self.ended = more.rest, more.ended


def decode(piece: bytes) -> Events:
    """The events of a piece of an event list.

    Args:
        piece: begins with an event (or is empty) and ends with one, or anywhere after the end of the list.

    Raises:
        DAMAGE: the piece is damaged or ends inside an event.
    """
    check_utf8(piece)
    wrapped = b"[" + piece + b"]"
    try:
        raws = _raw_list.decode(wrapped)
    except msgspec.DecodeError as error:
        end = _end_of_list(piece, str(error))
        if end is None:
            raise
        events = decode(piece[: end - 1].rstrip(b", \t\r\n"))
        events.rest, events.ended = piece[end:], True
        return events
    return Events(raws, [head.cat for head in _head_list.decode(wrapped)])


def check_utf8(piece: bytes) -> None:
    """Raise UnicodeDecodeError for bytes that are no UTF-8: the decoder does not look into the text it skips."""
    if piece.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(piece), _RUN):  # in parts that stay in the processor's cache
        decoder.decode(piece[begin : begin + _RUN])
    decoder.decode(b"", final=True)


def _end_of_list(piece: bytes, error: str) -> int | None:
    """The position after the bracket that closes the list, if meeting it is why decoding stopped."""
    match = _BYTE.search(error)
    if match is None or not ("trailing characters" in error or "trailing comma in array" in error):
        return None
    bracket = piece.rfind(b"]", 0, int(match.group(1)))
    return bracket + 1 if bracket >= 0 and _LIST_END.match(piece, bracket) else None


def salvage(piece: bytes, book: notes.NoteBook, final: bool) -> Events:
    """The whole events of a damaged piece.

    Args:
        piece: text that begins with an event of the list.
        book: where repairs and losses are counted.
        final: the file ends with this piece; otherwise an unfinished last event is handed back in `Events.rest`.
    """
    return _Salvage(piece, book, final).run()


class _Salvage:
    """One damaged piece, taken apart from its beginning to its end."""

    def __init__(self, piece: bytes, book: notes.NoteBook, final: bool) -> None:
        self._piece = piece
        self._book = book
        self._final = final
        self._found = Events()
        self._effort = _EFFORT * max(len(piece), _RUN)
        self._starts, self._ends = array("q", (0,)), array("q")
        for match in BOUNDARY.finditer(piece):
            self._starts.append(match.end())
            self._ends.append(match.start() + 1)
        self._ends.append(len(piece))

    def run(self) -> Events:
        index = 0
        while index < len(self._starts) and not self._found.ended and not self._found.rest:
            stop = self._run_end(index)
            try:
                self._found.extend(decode(self._piece[self._starts[index] : self._ends[stop - 1]]))
                index = stop
            except DAMAGE:
                while index < stop and not self._found.ended and not self._found.rest:
                    index = self._take(index)
        return self._found

    def _run_end(self, index: int) -> int:
        limit = self._starts[index] + _RUN
        end = index + 1
        while end < len(self._ends) and self._ends[end] <= limit:
            end += 1
        return end

    def _take(self, index: int) -> int:
        """Take the event that begins with segment `index`, or drop that segment; the next segment's index."""
        count = 1
        while True:
            stop = min(index + count, len(self._ends))
            text = self._piece[self._starts[index] : self._ends[stop - 1]]
            try:
                self._found.extend(self._repaired(text))
                return stop
            except DAMAGE:
                unfinished = len(text) < _LONGEST_EVENT and _is_unfinished(repair(text)[0])
            if not unfinished:
                break
            if stop == len(self._ends):
                if not self._final:
                    self._found.rest = text
                    return stop
                break
            self._effort -= len(text)
            unfinished = self._effort > 0
            if not unfinished:
                break
            count += 1
            if count > 8 or len(text) > _RUN:
                count = max(count, bisect_right(self._ends, self._starts[index] + 2 * len(text)) - index)
        if unfinished and index >= self._last_event:
            return len(self._starts)  # the event in which the file was cut
        if not self._resume(self._piece[self._starts[index] : self._ends[index]]):
            self._drop(index)
        return index + 1

    @cached_property
    def _last_event(self) -> int:
        """The last segment that begins like an event; -1 if none does."""
        segments = range(len(self._starts) - 1, -1, -1)
        return next((index for index in segments if _EVENT_START.match(self._piece, self._starts[index])), -1)

    def _resume(self, text: bytes) -> bool:
        """Take the event that follows a cut one in the same segment, as when two writers share a file."""
        for start in [match.start() for match in _EVENT_START.finditer(text, 1)][: -_RESUMES - 1 : -1]:
            try:
                self._found.extend(self._repaired(text[start:]))
            except DAMAGE:
                continue
            self._book.add(notes.DAMAGED_EVENTS)
            return True
        return False

    def _repaired(self, text: bytes) -> Events:
        try:
            return decode(text)
        except DAMAGE:
            repaired, repairs = repair(text)
            events = decode(repaired)
        for code, count in repairs.items():
            self._book.add(code, count)
        return events

    def _drop(self, index: int) -> None:
        if index + 1 < len(self._starts):
            self._book.add(notes.DAMAGED_EVENTS)
            return
        # The last segment holds what follows the list too; without its end the file is cut, which the caller notes.
        if end := LAST_EVENT_END.search(self._piece, self._starts[index]):
            self._book.add(notes.DAMAGED_EVENTS)
            self._found.ended, self._found.rest = True, self._piece[end.start(1) + 1 :]


def _is_unfinished(text: bytes) -> bool:
    """Whether more text could make this an event."""
    try:
        _raw.decode(text[:-_WORD] + _LAST_WORD.sub(b"", text[-_WORD:]))  # a number or literal may be cut itself
    except DAMAGE as error:
        return "truncated" in str(error)
    return False


def repair(text: bytes) -> tuple[bytes, Counter[str]]:
    """Make damaged JSON text decodable where that is possible without guessing.

    Control characters inside strings and bytes that are no UTF-8 become U+FFFD, bare NaN and inf become null,
    backslashes that begin no escape become text, halves of surrogate pairs U+FFFD.

    Returns:
        The text and how often each kind of repair was made.
    """
    counts: Counter[str] = Counter()
    if not text.isascii():
        decoded = text.decode("utf-8", "replace")
        counts[notes.INVALID_UTF8] = decoded.count("\ufffd") - text.count(_REPLACEMENT)
        text = decoded.encode()

    def escape(match: re.Match[bytes]) -> bytes:
        found = match.group()
        if len(found) == 12 or found in _GOOD_ESCAPES:
            return found
        if found[1:2] == b"u" and len(found) == 6:
            if found[2:3] not in b"dD" or found[3:4] in b"01234567":
                return found
            counts[notes.INVALID_ESCAPES] += 1
            return _REPLACEMENT
        counts[notes.INVALID_ESCAPES] += 1
        return b"\\\\" + found[1:]

    def token(match: re.Match[bytes]) -> bytes:
        found = match.group()
        if not found.startswith(b'"'):
            counts[notes.NON_FINITE_NUMBERS] += 1
            return b"null"
        if b"\\" in found:
            found = _ESCAPE.sub(escape, found)
        found, controls = _CONTROL.subn(_REPLACEMENT, found)
        counts[notes.CONTROL_CHARACTERS] += controls
        return found

    return _TOKEN.sub(token, text), counts
