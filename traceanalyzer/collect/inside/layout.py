"""The files that the supervisor and the recorded processes share: the control block and the step ring.

Both are memory mapped, little-endian, and have one writer each: the supervisor writes the control block, a process its
own ring. A field is written by assigning its eight bytes to a slice, which is one memory copy: a reader may see an old
value, never half of a new one. (`pack_into` would set the bytes to zero first, and readers do see that.) What could be
wrong: a record of the ring is written in a copy of 64 bytes, which another process may see half done. It therefore
carries its own number, and a reader takes it only when that is the expected one and the ring's count has passed it.
"""

from __future__ import annotations

import struct

ENVIRONMENT = "TRACEANALYZER_RUN"
"""Names the runtime folder; a process without it is left alone."""
PAGE = 4096

CONTROL_SIZE = PAGE
CONTROL_MAGIC = 0x7461_6374_0001
MAGIC = 0
"""Offset of the magic number, in both files."""
WINDOW_ID = 8
"""Number of the window asked for last, from 1; 0: none yet. The `python` recorder opens a window when it changes."""
MAX_STEPS = 16
"""Complete steps of a window."""
MAX_MS = 24
"""Longest duration of a window, milliseconds."""
RECORD_FROM_NS = 32
"""Epoch nanoseconds from which steps carry labels for an on-demand window."""
RECORD_UNTIL_NS = 40
"""Epoch nanoseconds until which they do; 0: no on-demand window is planned."""
FLUSH_ID = 48
"""When it changes, an open window is closed at once and written."""
STOPPED = 56
"""1: no window is opened any more (disk full, quota reached, shutting down)."""
HEARTBEAT_NS = 64
"""Epoch nanoseconds at which the supervisor was last alive."""
KINETO_UNTIL_NS = 72
"""Epoch nanoseconds until which Kineto may be at work on an on-demand window, or about to begin: no session of the
script may start, since the two together crash. 0: it is not."""
QUIET_FROM_NS = 80
"""Epoch nanoseconds from which an on-demand window takes no further operations: see `quiet`."""
WINDOW_END_NS = 88
"""Epoch nanoseconds at which Kineto ends it; 0: no on-demand window is planned."""
HEARTBEAT_LIMIT_NS = 10_000_000_000
"""No window is opened when the heartbeat is older."""

RING_MAGIC = 0x7461_7267_0001
RING_CAPACITY = 131_072
"""Records kept: ten minutes at up to 218 steps a second."""
RING_PID = 8
RING_COUNT = 16
"""Records ever written; record i lies in slot i modulo the capacity."""
RING_OPEN_SCOPES = 24
"""Scopes entered during a recording that are still open: while there are any, no further window may start."""
RING_FOREIGN = 32
"""Profiler sessions of the script itself that are running."""
RING_WINDOW = 40
"""Number of the window that the `python` recorder has open or is writing; 0: none."""
RING_WINDOWS_DONE = 48
RING_FAILURES = 56
"""Failures of ours that were swallowed for the host's sake; the last ones are in procs/PID.json."""
RING_SEEN_WINDOW = 64
"""Number of the last window this process has seen and answered, by opening it or by refusing it."""

RING_QUIET_NS = 72
"""Epoch nanoseconds at which torch was last told to take no further operations for an on-demand window."""

RECORD = struct.Struct("<QQQQIIIIIBBHI4x")
"""One step: see `RECORD_FIELDS`."""
RECORD_FIELDS = (
    "start_ns",  # epoch nanoseconds
    "duration_ns",  # of the call on the host; on a GPU its work may end later
    "context_sum",  # summed over the sequences, the step's own tokens included
    "query_context_sum",  # sum over the sequences of query tokens x context
    "number",  # the record's index modulo 2**32
    "tokens",  # tokens that go through the model in this step, summed over the batch
    "sequences",
    "prefill_tokens",
    "new_sequences",  # sequences that start in this step: requests, as the model sees them
    "phase",  # index into PHASES
    "flags",  # FLAG_*
    "window",  # number of the window it was recorded in, modulo 2**16; 0: none
    "thread",  # native thread id, modulo 2**32
)
RING_SIZE = PAGE + RING_CAPACITY * RECORD.size

PHASES = ("other", "prefill", "decode", "mixed", "draft", "encoder")
FLAG_COMPILED = 1
FLAG_FAILED = 2
"""The step raised."""

SPAN = struct.Struct("<QQ")
"""RECORD_FROM_NS and RECORD_UNTIL_NS, read at once."""
_WORD = struct.Struct("<Q")
Buffer = object
"""An `mmap.mmap` or a `bytearray`."""


def read_word(buffer: Buffer, offset: int) -> int:
    """The unsigned 64-bit field at `offset`."""
    return int(_WORD.unpack_from(buffer, offset)[0])  # type: ignore[arg-type]


def write_word(buffer: Buffer, offset: int, value: int) -> None:
    """Set the unsigned 64-bit field at `offset`, in one piece."""
    buffer[offset : offset + 8] = _WORD.pack(value)  # type: ignore[index]


def record_offset(index: int) -> int:
    """Where record `index` of a ring lies, in bytes."""
    return PAGE + (index % RING_CAPACITY) * RECORD.size
