"""Reads one process' ring: each step once, in order, none that is half written.

What could be wrong: a writer that is stopped between taking a record's number and writing it leaves a hole. The reader
waits for it for about a second, then goes on and counts it as lost.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Iterator, NamedTuple

from .inside import layout

_SLACK = 64
"""Slots behind the oldest record that writers may be about to overwrite."""
_HOLE_READS = 20
"""How often a record that is not there yet is waited for: two threads write at once, the second is done first."""
_READ_AT_ONCE = 4096
_HEADER = struct.Struct("<QQQ")
"""From `layout.MAGIC` to `layout.RING_COUNT`: read at once, as this happens twenty times a second for each rank."""


class Step(NamedTuple):
    """One record of a ring; see `layout.RECORD_FIELDS`."""

    start_ns: int
    duration_ns: int
    context_sum: int
    query_context_sum: int
    number: int
    tokens: int
    sequences: int
    prefill_tokens: int
    new_sequences: int
    phase: int
    flags: int
    window: int
    thread: int


class RingReader:
    """Follows one process' ring. Reads by `pread`: a memory map would be a trap when the process makes its ring anew.

    lost: records that were overwritten before they were read, or never completed.
    """

    def __init__(self, path: Path) -> None:
        """Open the ring. Raises `OSError`."""
        self.lost = 0
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._last_header = b""
        self._next = 0
        self._patience = self._most_patience = _HOLE_READS

    def word(self, offset: int) -> int:
        """A word of the ring's header, after `close` as it was then; 0 while there is none."""
        data = os.pread(self._fd, 8, offset) if self._fd >= 0 else self._last_header[offset : offset + 8]
        return int.from_bytes(data, "little") if len(data) == 8 else 0

    @property
    def count(self) -> int:
        """Records ever written."""
        return self.word(layout.RING_COUNT)

    def new_records(self) -> list[Step]:
        """The records that were completed since the last call, oldest first; at most `_READ_AT_ONCE`."""
        if self._fd < 0:
            return []
        header = os.pread(self._fd, _HEADER.size, layout.MAGIC)
        magic, _, count = _HEADER.unpack(header) if len(header) == _HEADER.size else (0, 0, 0)
        if magic != layout.RING_MAGIC:
            return []
        if count < self._next and not self._is_there(self._next - 1):  # the process replaced itself and began anew
            self._next = 0
        self._skip_overwritten(count)
        number = min(count - self._next, _READ_AT_ONCE)
        if number <= 0:
            return []
        found = self._complete(self._slots(self._next, number))
        safe = self.count - layout.RING_CAPACITY + _SLACK  # the writer may have come round while these were copied
        whole = [step for index, step in found if index >= safe]
        self.lost += len(found) - len(whole)
        return whole

    def rest(self) -> Iterator[list[Step]]:
        """What a writer that has ended left, in pieces: no record is waited for any more."""
        self._patience = self._most_patience = 0
        before = -1
        while before != self._next:
            before = self._next
            found = self.new_records()
            if found:
                yield found

    def _complete(self, data: bytes) -> list[tuple[int, Step]]:
        found: list[tuple[int, Step]] = []
        for fields in layout.RECORD.iter_unpack(data):
            step = Step._make(fields)
            if step.start_ns and step.number == self._next & 0xFFFF_FFFF:
                found.append((self._next, step))
                self._patience = self._most_patience
            elif self._patience > 0:
                self._patience -= 1
                break
            else:
                self.lost += 1
            self._next += 1
        return found

    def _is_there(self, index: int) -> bool:
        """Whether a slot is filled. The count alone may go back by one when two threads write at once."""
        data = self._slots(index, 1)
        return len(data) == layout.RECORD.size and layout.RECORD.unpack(data)[0] != 0

    def _skip_overwritten(self, count: int) -> None:
        oldest = count - layout.RING_CAPACITY + _SLACK
        if oldest > self._next:
            self.lost += oldest - self._next
            self._next = oldest

    def _slots(self, first: int, number: int) -> bytes:
        at = layout.record_offset(first)
        size = number * layout.RECORD.size
        head = os.pread(self._fd, min(size, layout.RING_SIZE - at), at)
        rest = size - (layout.RING_SIZE - at)
        data = head + os.pread(self._fd, rest, layout.PAGE) if rest > 0 else head
        return data[: len(data) - len(data) % layout.RECORD.size]

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            self._last_header = os.pread(self._fd, layout.PAGE, 0)
            os.close(self._fd)
            self._fd = -1
