"""What one process of the command is and does, as the supervisor sees it: its ring, its hello file, the control block.

`process` is the one instance. It is attached when torch is first imported, not before: a process without torch opens no
file of ours. What could be wrong: a fork shares the memory map of its parent's ring, so the child lets go of it and
makes its own as soon as it runs a step; between the fork and that step it counts nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import struct
import sys
import threading
import time
from typing import Any

from . import layout
from .description import Compiled, Description
from .guard import failures, note, total

_PHASES = {phase: index for index, phase in enumerate(layout.PHASES)}
# Of its own module, a name is found sooner: this is a good part of what a step costs.
_PAGE, _CAPACITY, _RECORD_SIZE, _COUNT = layout.PAGE, layout.RING_CAPACITY, layout.RECORD.size, layout.RING_COUNT
_pack_record = layout.RECORD.pack_into
_pack_word = struct.Struct("<Q").pack


class Process:
    """The state of this process. All fields may be read at any time; only methods change them.

    config: what to record, from RUNTIME/config.json; empty before `attach`.
    control, ring: memory maps, or None where they could not be made.
    facts: what the hello file says about this process, JSON types only.
    """

    def __init__(self) -> None:
        """Nothing is attached yet."""
        self.folder = ""
        self.config: dict[str, Any] = {}
        self.control: mmap.mmap | None = None
        self.ring: mmap.mmap | None = None
        self.pid = 0
        self.forked = False
        """Whether torch was imported before this process was forked: Kineto's own thread is then missing."""
        self.facts: dict[str, Any] = {}
        self.lock = threading.RLock()
        self._numbers = itertools.count()
        self._written = 0

    def attach(self, folder: str) -> bool:
        """Open the control block and the ring, and say hello. Returns whether there is something to record for."""
        self.folder = folder
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
            self.config = json.load(stream)
        self.control = _mapped(os.path.join(folder, "control"), layout.CONTROL_SIZE)
        if self.control is None or layout.read_word(self.control, layout.MAGIC) != layout.CONTROL_MAGIC:
            self.control = None
            return False
        self._open_ring()
        os.register_at_fork(after_in_child=self.after_fork)
        return True

    def after_fork(self) -> None:
        """In the child: forget the parent's ring; the next step or hello makes one of its own."""
        self.ring = None
        self.forked = True
        self.lock = threading.RLock()
        failures.clear()

    def ensure(self) -> bool:
        """A ring of this process' own; False where there can be none."""
        if self.ring is None and self.control is not None and self.pid != os.getpid():
            with self.lock:
                if self.ring is None:
                    self._open_ring()
                    self.hello()
        return self.ring is not None

    @property
    def steps(self) -> int:
        """Records written so far: the number of the next one, unless another thread's step ends first."""
        return self._written

    def _open_ring(self) -> None:
        self.pid = os.getpid()
        path = os.path.join(self.folder, "rings", f"{self.pid}.ring")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _allocate(fd, layout.RING_SIZE)
            ring = mmap.mmap(fd, layout.RING_SIZE)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        layout.write_word(ring, layout.RING_PID, self.pid)
        layout.write_word(ring, layout.MAGIC, layout.RING_MAGIC)
        self._numbers = itertools.count()
        self._written = 0
        self.ring = ring

    def write_step(self, description: Description, start: int, end: int, flags: int, window: int, thread: int) -> None:
        """Add one record: a step between two times in epoch nanoseconds; what is unknown of it is 0 in the ring.

        Raises nothing, whatever the description holds.
        """
        ring = self.ring
        if ring is None:
            return
        index = next(self._numbers)
        place = _PAGE + index % _CAPACITY * _RECORD_SIZE
        duration = end - start if end > start else 0
        phase, tokens, sequences, context_sum, query_context_sum, prefill_tokens, _, new = description
        if type(description) is Compiled:
            flags |= layout.FLAG_COMPILED
        if prefill_tokens is None and phase == "prefill":
            prefill_tokens = tokens
        try:
            _pack_record(
                ring, place, start, duration, context_sum or 0, query_context_sum or 0, index & 0xFFFF_FFFF,
                tokens or 0, sequences or 0, prefill_tokens or 0, new or 0, _PHASES[phase], flags, window & 0xFFFF,
                thread,
            )  # fmt: skip
        except (struct.error, KeyError) as error:  # what cannot be: the step is kept without any size
            note("record", error)
            _pack_record(ring, place, start, duration, 0, 0, index & 0xFFFF_FFFF, 0, 0, 0, 0, 0, flags, 0, thread)
        if index >= self._written:  # two threads: the count never goes back
            self._written = index + 1
            ring[_COUNT : _COUNT + 8] = _pack_word(index + 1)  # in one piece, see `layout`

    def set(self, offset: int, value: int) -> None:
        """Set a word of the ring's header."""
        if self.ring is not None:
            layout.write_word(self.ring, offset, value)

    def asked(self, offset: int) -> int:
        """A word of the control block; 0 without one."""
        return layout.read_word(self.control, offset) if self.control is not None else 0

    def supervised(self) -> bool:
        """Whether the supervisor is alive and lets windows be opened."""
        return self.control is not None and not self.asked(layout.STOPPED) and self.watched(time.time_ns())

    def watched(self, now_ns: int) -> bool:
        """Whether the supervisor was alive a moment ago."""
        return now_ns - self.asked(layout.HEARTBEAT_NS) < layout.HEARTBEAT_LIMIT_NS

    def count_failure(self, first: bool) -> None:
        """Show the number of failures to the supervisor and, where it is the first at its place, what failed."""
        self.set(layout.RING_FAILURES, total())
        if first and self.ring is not None:
            with contextlib.suppress(OSError, TypeError, ValueError):
                self.hello()

    def hello(self, **facts: Any) -> None:
        """Add facts and write procs/PID.json anew, atomically.

        Values are JSON types; no argument, environment, prompt or path may be among them.
        """
        with self.lock:  # two threads may meet a model at once
            self.facts.update(facts)
            told = [{"where": where, "count": n, "error": error} for where, (n, error) in list(failures.items())]
            found = dict(self.facts)
            found.update(
                schema=1, pid=os.getpid(), ppid=os.getppid(), python=sys.version.split()[0], forked=self.forked,
                failures=told,
            )  # fmt: skip
            path = os.path.join(self.folder, "procs", f"{os.getpid()}.json")
            with open(f"{path}.tmp", "w", encoding="utf-8") as stream:
                json.dump(found, stream)
            os.replace(f"{path}.tmp", path)


def _allocate(fd: int, size: int) -> None:
    """Take the space on the disk now: a page of a mapped file that finds no room kills the process by SIGBUS."""
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        allocate(fd, 0, size)
        return
    zeros = bytes(1 << 16)
    for start in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - start], start)


def _mapped(path: str, size: int) -> mmap.mmap | None:
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        return mmap.mmap(fd, size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


process = Process()
