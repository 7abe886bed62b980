"""Reads a raw Kineto trace piece by piece: whether it is whole, what it holds, and where its events lie.

Every byte is parsed as JSON, a quarter of a megabyte at a time, so that memory grows with the number of steps only.
What could be wrong: one event or one top-level value of more than `LONGEST` bytes counts as damage, and so does a NUL
byte, which a file system leaves where a write was lost. Control characters in strings are let pass, as Kineto writes
kernel names as they are.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from .inside.layout import PHASES

CHUNK = 1 << 18
LONGEST = 4 << 20
"""Bytes of one value: the bound on memory."""

_DECODER = json.JSONDecoder(strict=False)
_SOLID = re.compile(rb"[^ \t\r\n]")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_FIRST_LOOK = 4096
_STEP = re.compile(r"ta\.step\[(\w+)(?: n=(\d{1,18})\b)?")


class Damaged(ValueError):
    """A raw trace that is not whole, or has no events. The message says what is wrong, never what stands there."""


@dataclass
class Scan:
    """What a raw trace holds.

    Byte offsets `begin` and `end` enclose the events, without their brackets. `steps` counts step labels by phase on
    the host (`user_annotation`), `unfinished` those that the end of the window cut. Times are nanoseconds since the
    epoch or None: of the first and last complete step's begin and end, and of the recording. `first_number` is the
    running number of the first step label.
    """

    header: dict[str, Any] = field(default_factory=dict)
    begin: int = -1
    end: int = -1
    events: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    unfinished: int = 0
    first_number: int | None = None
    first_step_ns: int | None = None
    last_step_ns: int | None = None
    opened_ns: int | None = None
    closed_ns: int | None = None

    @property
    def steps(self) -> int:
        """Complete steps of all phases."""
        return sum(self.phases.values())


def scan(stream: BinaryIO, quiet_ns: int | None = None) -> Scan:
    """Read a raw trace from its beginning.

    Args:
        stream: the trace.
        quiet_ns: epoch nanoseconds; a step that ends later is cut, whatever its label says. None: none is.

    Raises:
        Damaged: it is no complete JSON object, has no closed `traceEvents`, or no event.
        OSError: it cannot be read.
    """
    reader = _Reader(stream)
    found = Scan()
    tally = _Tally(found)
    reader.expect(b"{", "no JSON object")
    while True:
        key = reader.value()
        if not isinstance(key, str):
            raise Damaged("a key that is no text")
        reader.expect(b":", "a key without a value")
        if key == "traceEvents":
            if found.begin >= 0:
                raise Damaged("events twice")
            reader.expect(b"[", "events that are no list")
            found.begin = reader.offset
            _events(reader, tally)
            found.end = reader.offset
            reader.expect(b"]", "events that do not end")
        else:
            found.header[key] = reader.value()
        if reader.next() == b"}":
            break
        reader.expect(b",", "no comma between two keys")
    reader.expect(b"}", "no end")
    if reader.next():
        raise Damaged("something after the end")
    if not found.events:
        raise Damaged("no events")
    tally.settle(quiet_ns)
    return found


class _Reader:
    """A window of bytes on a stream: `buffer` from `at` on is what is not taken yet."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.buffer = b""
        self.at = 0
        self.base = 0
        self.ended = False

    @property
    def offset(self) -> int:
        """Where the next byte to be taken lies in the file."""
        return self.base + self.at

    def more(self, size: int = CHUNK) -> bool:
        """Read on; False at the end."""
        chunk = self.stream.read(size)
        self.ended = not chunk
        if b"\0" in chunk:
            raise Damaged("a hole")
        self.base += self.at
        self.buffer = self.buffer[self.at :] + chunk
        self.at = 0
        return not self.ended

    def next(self) -> bytes:
        """The next byte that is no white space, left where it is; empty at the end."""
        while True:
            found = _SOLID.search(self.buffer, self.at)
            self.at = found.start() if found else len(self.buffer)
            if found or not self.more():
                return found.group() if found else b""

    def expect(self, mark: bytes, otherwise: str) -> None:
        """Take the byte that must come next."""
        found = self.next()
        if found != mark:
            raise Damaged(otherwise if found else "cut off")
        self.at += 1

    def value(self) -> Any:
        """Take one JSON value."""
        self.next()
        size = _FIRST_LOOK
        while True:
            text = _decoded(self.buffer[self.at : self.at + size])
            try:
                value, end = _DECODER.raw_decode(text)
            except ValueError:
                pass
            except RecursionError:
                raise Damaged("nested too deep") from None
            else:
                if end < len(text):  # else a number may go on; a value is never a trace's last byte
                    self.at += _bytes_of(text[:end])
                    return value
            self._check_room(size)
            size *= 2

    def _check_room(self, size: int) -> None:
        """See that there is more to look at than the first `size` bytes, within the bound."""
        if size >= LONGEST:
            raise Damaged("no JSON, or a value that is too long")
        while len(self.buffer) - self.at <= size:
            if not self.more(max(CHUNK, size)):
                raise Damaged("cut off, or no JSON")

    def values(self) -> list[Any]:
        """Take as many values of a list as the buffer holds whole, at least one, up to a comma or the list's end."""
        if len(self.buffer) - self.at < CHUNK and not self.ended:
            self.more()
        cut = self.buffer.rfind(b"},", self.at) + 1
        if cut:
            # Kineto ends an event so. Where it ends something inside one, the text before it does not parse.
            try:
                found = _DECODER.decode("[" + _decoded(self.buffer[self.at : cut]) + "]")
            except (ValueError, RecursionError):
                pass
            else:
                self.at = cut
                return list(found)
        return self._one_by_one()

    def _one_by_one(self) -> list[Any]:
        found = [self.value()]
        text = _decoded(self.buffer[self.at :])
        taken = 0
        while True:
            comma = _COMMA.match(text, taken)
            if comma is None:
                break
            try:
                value, end = _DECODER.raw_decode(text, comma.end())
            except (ValueError, RecursionError):
                break
            if end == len(text):
                break
            found.append(value)
            taken = end
        self.at += _bytes_of(text[:taken])
        return found


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _events(reader: _Reader, tally: _Tally) -> None:
    if reader.next() == b"]":
        return
    while True:
        tally.add(reader.values())
        if reader.next() == b"]":
            return
        reader.expect(b",", "no comma between two events")


class _Tally:
    """Counts events and step labels."""

    def __init__(self, found: Scan) -> None:
        self.found = found
        self.finished: list[tuple[float, float, str]] = []
        self.first: tuple[float, str | None] | None = None
        self.window: tuple[float, float] | None = None

    def add(self, events: list[Any]) -> None:
        count = 0
        for event in events:
            if not isinstance(event, dict):
                raise Damaged("an event that is no object")
            if event.get("ph") == "M":
                continue
            count += 1
            category = event.get("cat")
            if category == "user_annotation":
                name = event.get("name")
                label = _STEP.match(name) if isinstance(name, str) else None
                if label is not None:
                    self._step(event, label)
            elif category == "Trace":
                self.window = _span(event) or self.window
        self.found.events += count

    def _step(self, event: dict[str, Any], label: re.Match[str]) -> None:
        span = _span(event)
        if span is None:
            return
        if self.first is None or span[0] < self.first[0]:
            self.first = (span[0], label.group(2))
        arguments = event.get("args")
        if isinstance(arguments, dict) and arguments.get("finished") in (False, "false"):
            self.found.unfinished += 1
            return
        phase = label.group(1) if label.group(1) in PHASES else "other"
        self.finished.append((*span, phase))

    def settle(self, quiet_ns: int | None) -> None:
        """Count the steps, and turn the trace's own microseconds into epoch nanoseconds, now that its base is known."""
        base = self.found.header.get("baseTimeNanoseconds")
        if isinstance(base, bool) or not isinstance(base, int):
            base = 0
        found = self.found
        if self.first is not None and self.first[1] is not None:
            found.first_number = int(self.first[1])
        spans = [(_epoch(base, begin), _epoch(base, end), phase) for begin, end, phase in self.finished]
        whole = [span for span in spans if quiet_ns is None or span[1] <= quiet_ns]
        found.unfinished += len(spans) - len(whole)
        found.phases = dict(Counter(phase for _, _, phase in whole))
        if whole:
            found.first_step_ns, found.last_step_ns = min(span[0] for span in whole), max(span[1] for span in whole)
        if self.window is not None:
            found.opened_ns, found.closed_ns = _epoch(base, self.window[0]), _epoch(base, self.window[1])


def _epoch(base_ns: int, microseconds: float) -> int:
    return base_ns + round(microseconds * 1000)


def _span(event: dict[str, Any]) -> tuple[float, float] | None:
    """Begin and end in the trace's microseconds."""
    begin, duration = event.get("ts"), event.get("dur")
    for number in (begin, duration):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) < 1e18:
            return None
    return begin, begin + duration  # type: ignore[operator, return-value]
