"""What a reader returns: a `Trace` of columnar tables, metadata and notes on data quality.

Columns, never dicts of events. Every table is a pandas DataFrame over numpy columns with a fresh RangeIndex. Times are
integer nanoseconds since `Metadata.base_time_ns` (exactly as recorded: decimal microseconds times 1000). Text is
interned once in `Trace.strings`; a column that holds text holds int32 codes into it. Unknown integers are `MISSING`,
unknown floats NaN.

Tables and their columns (dtype int64 unless said otherwise):

    kernels      name i32, kind i8 (KERNEL, MEMCPY, MEMSET), start_ns, duration_ns, device i32, stream, correlation,
                 external_id, graph_id, graph_node_id, grid_x grid_y grid_z block_x block_y block_z (i32),
                 occupancy f32 (percent, as recorded), blocks_per_sm f32, bytes (memcpy, memset), context
                 sorted by (device, start_ns, row in the file)
    launches     name i32, thread i32, start_ns, duration_ns, correlation, external_id,
                 launched i32 (the kernel's name), grid i32, block i32 (codes of JSON text); these on ROCm only
                 runtime and driver calls, sorted by start_ns
    ops          name i32, thread i32, start_ns, duration_ns, external_id, dims i32, types i32, concrete i32,
                 strides i32 (codes of the raw JSON text, MISSING without record_shapes), parent i32 (row of the
                 innermost enclosing op on the same thread, MISSING for a root), sequence, sorted by
                 (thread, start_ns, -duration_ns)
    annotations  name i32, kind i8 (USER, GPU_USER), start_ns, duration_ns, thread i32, device i32, stream, external_id
    syncs        name i32, start_ns, duration_ns, device i32, stream, correlation
    counters     name i32, start_ns, device i32, value f64
    frames       name i32, thread i32, start_ns, duration_ns
                 Python functions that took 100 us or longer (see `frames`), sorted by (thread, start_ns, -duration_ns),
                 and the profiler's own work of that length ("Buffer Flush"), on a thread of its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

MISSING = -1
KERNEL, MEMCPY, MEMSET = 0, 1, 2
USER, GPU_USER = 0, 1

Severity = Literal["info", "warning", "error"]

_ID = np.int64
_CODE = np.int32

KERNEL_COLUMNS: Mapping[str, type] = {
    "name": _CODE, "kind": np.int8, "start_ns": _ID, "duration_ns": _ID, "device": np.int32, "stream": _ID,
    "correlation": _ID, "external_id": _ID, "graph_id": _ID, "graph_node_id": _ID,
    "grid_x": np.int32, "grid_y": np.int32, "grid_z": np.int32,
    "block_x": np.int32, "block_y": np.int32, "block_z": np.int32,
    "occupancy": np.float32, "blocks_per_sm": np.float32, "bytes": _ID, "context": _ID,
}  # fmt: skip
LAUNCH_COLUMNS: Mapping[str, type] = {
    "name": _CODE, "thread": np.int32, "start_ns": _ID, "duration_ns": _ID, "correlation": _ID, "external_id": _ID,
    "launched": _CODE, "grid": _CODE, "block": _CODE,
}  # fmt: skip
OP_COLUMNS: Mapping[str, type] = {
    "name": _CODE, "thread": np.int32, "start_ns": _ID, "duration_ns": _ID, "external_id": _ID,
    "dims": _CODE, "types": _CODE, "concrete": _CODE, "strides": _CODE, "parent": np.int32, "sequence": _ID,
}  # fmt: skip
ANNOTATION_COLUMNS: Mapping[str, type] = {
    "name": _CODE, "kind": np.int8, "start_ns": _ID, "duration_ns": _ID, "thread": np.int32,
    "device": np.int32, "stream": _ID, "external_id": _ID,
}  # fmt: skip
SYNC_COLUMNS: Mapping[str, type] = {
    "name": _CODE, "start_ns": _ID, "duration_ns": _ID, "device": np.int32, "stream": _ID, "correlation": _ID,
}  # fmt: skip
COUNTER_COLUMNS: Mapping[str, type] = {
    "name": _CODE, "start_ns": _ID, "device": np.int32, "value": np.float64,
}  # fmt: skip
FRAME_COLUMNS: Mapping[str, type] = {
    "name": _CODE, "thread": np.int32, "start_ns": _ID, "duration_ns": _ID,
}  # fmt: skip


def no_frames() -> pd.DataFrame:
    """The frames of a trace that was recorded without Python stacks."""
    return pd.DataFrame({name: np.empty(0, kind) for name, kind in FRAME_COLUMNS.items()})


@dataclass(frozen=True, slots=True)
class Note:
    """One thing a reader of the report must know about the data: lost, repaired or inconsistent.

    `code` is stable and machine-readable (snake_case); its sentence stands in `report/strings.py`. `count` is how many
    events (or whatever the sentence counts) it concerns, `detail` the specific that the sentence quotes, if any.
    """

    code: str
    severity: Severity
    count: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """The file behind a trace. `name` is its base name, `bytes` its size as given (compressed where it was)."""

    name: str
    sha256: str
    format: str  # "kineto-json", "kineto-json.gz", "kineto-json.zst"
    bytes: int
    events: int


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """One entry of Kineto's deviceProperties (or the older computeProperties)."""

    id: int
    name: str
    memory_bytes: int | None
    compute_major: int | None
    compute_minor: int | None
    num_sms: int | None
    warp_size: int | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """The known top-level facts of a trace; unknown keys are dropped (they hold environments and tokens).

    `producer` maps torch, cuda_runtime, cuda_driver, cupti, hip_runtime, hip_driver, roctracer, vllm, ... to version
    strings, where recorded. `recorded_at_ns` is nanoseconds since the epoch. `collector` is the known part of
    the recorder's own block: `{"schema": 1, section: {key: scalar or list of scalars}}`, see `trace.collector`.
    """

    base_time_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    devices: tuple[DeviceProperties, ...] = ()
    producer: Mapping[str, str] | None = None
    host_hash: str | None = None
    recorded_at_ns: int | None = None
    record_shapes: bool | None = None
    with_stack: bool | None = None
    collector: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """One file of a trace that several windows were joined to; times in nanoseconds on the joined trace's clock."""

    source: Source
    metadata: Metadata
    kernels: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Recording:
    """What the manifest of a recording says about the files that were read from it.

    `windows` is how many the manifest lists, `windows_read` how many of them the traces hold. `ranks_missing` are ranks
    of which some window that was read has no file. `dropped` counts, by reason, what was not recorded or not kept.
    """

    mode: str | None
    recorder: str | None
    reasons: tuple[str, ...]
    windows: int
    windows_read: int
    ranks_missing: tuple[int, ...]
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class Trace:
    """One recorded process: columns, metadata and what was lost on the way. See the module docstring.

    `windows` are the files that it was joined from (`trace.windows`), in order of time; a trace of one file has none.
    `recording` is there where the files came from a recording.
    """

    source: Source
    strings: tuple[str, ...]
    threads: tuple[str, ...]
    kernels: pd.DataFrame
    launches: pd.DataFrame
    ops: pd.DataFrame
    annotations: pd.DataFrame
    syncs: pd.DataFrame
    counters: pd.DataFrame
    metadata: Metadata
    quality: tuple[Note, ...]
    windows: tuple[Window, ...] = ()
    recording: Recording | None = None
    frames: pd.DataFrame = field(default_factory=no_frames)

    def text(self, code: int) -> str:
        """The interned text of a code; the empty string for MISSING."""
        return self.strings[code] if code >= 0 else ""
