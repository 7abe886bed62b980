"""The control block: how the supervisor tells every process of the command what to do, without a signal or a socket.

What could be wrong: nothing tells that a process has read it. `RING_SEEN_WINDOW` and `RING_WINDOW` in a process' ring
do, once it runs a step; a process that runs none stays silent.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from .inside import layout


class Control:
    """The control block at `path`, made anew. Raises `OSError` where it cannot be written or mapped."""

    def __init__(self, path: Path, steps: int, max_ms: int) -> None:
        """Make the block; windows have at most `steps` complete steps and last at most `max_ms` milliseconds."""
        fd = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # Written, not truncated to its size: a full disk is found here, not by a fault when the page is touched.
            os.write(fd, bytes(layout.CONTROL_SIZE))
            self._block = mmap.mmap(fd, layout.CONTROL_SIZE)
        finally:
            os.close(fd)
        self._set(layout.MAX_STEPS, steps)
        self._set(layout.MAX_MS, max_ms)
        self.beat()
        self._set(layout.MAGIC, layout.CONTROL_MAGIC)

    def beat(self) -> None:
        """Say that the supervisor is alive."""
        self._set(layout.HEARTBEAT_NS, time.time_ns())

    def request(self, window: int, steps: int, ms: int) -> None:
        """Ask the `python` recorder of every process for window number `window`; of no steps: for it no longer."""
        self._set(layout.MAX_STEPS, steps)
        self._set(layout.MAX_MS, ms)
        self._set(layout.WINDOW_ID, window)  # last: who sees the new number finds its limits in place

    def record_span(self, from_ns: int, until_ns: int, quiet_ns: int, end_ns: int) -> None:
        """Plan an on-demand window, all in epoch nanoseconds.

        Args:
            from_ns, until_ns: steps carry labels between them.
            quiet_ns: from then on no operation is taken any more.
            end_ns: when Kineto ends it.
        """
        self._set(layout.RECORD_UNTIL_NS, 0)  # between the writes there is no span, rather than a wrong one
        self._set(layout.WINDOW_END_NS, 0)
        self._set(layout.QUIET_FROM_NS, quiet_ns)
        self._set(layout.WINDOW_END_NS, end_ns)
        self._set(layout.RECORD_FROM_NS, from_ns)
        self._set(layout.RECORD_UNTIL_NS, until_ns)

    def hold_profilers(self, until_ns: int) -> None:
        """Let no profiler session of the script start before an epoch nanosecond; 0: let them start."""
        self._set(layout.KINETO_UNTIL_NS, until_ns)

    def flush(self) -> None:
        """Let open windows be closed at once and written."""
        self._set(layout.FLUSH_ID, self.word(layout.FLUSH_ID) + 1)

    def stop(self) -> None:
        """Let no window be opened any more."""
        self._set(layout.STOPPED, 1)

    def resume(self) -> None:
        """Take `stop` back."""
        self._set(layout.STOPPED, 0)

    def word(self, offset: int) -> int:
        """A field of the block; `offset` is one of `layout`'s."""
        return layout.read_word(self._block, offset)

    def close(self) -> None:
        """Let go of the memory map; the file stays."""
        self._block.close()

    def _set(self, offset: int, value: int) -> None:
        layout.write_word(self._block, offset, value)
