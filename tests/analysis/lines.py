"""Builds a Timeline from a few plain rows, so that a test states only what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from traceanalyzer.analysis import timeline
from traceanalyzer.analysis.devices import DeviceInfo, Limits
from traceanalyzer.analysis.model import UNKNOWN, of_recorder
from traceanalyzer.trace import tables
from traceanalyzer.trace.tables import MISSING, Metadata, Source, Trace

PEAK_TFLOPS = 100.0
BANDWIDTH_GBS = 1000.0
"""With these, F = 1e5 FLOPs take 1 ns and Q = 1e3 bytes take 1 ns."""

FLOPS_PER_NS = PEAK_TFLOPS * 1e3
BYTES_PER_NS = BANDWIDTH_GBS


def empty_table(columns: Mapping[str, type]) -> pd.DataFrame:
    return pd.DataFrame({name: np.empty(0, dtype) for name, dtype in columns.items()})


def device(kind: str = "cuda", **overrides: object) -> DeviceInfo:
    limits = Limits(None, {"bf16": PEAK_TFLOPS, "fp32": PEAK_TFLOPS / 10}, BANDWIDTH_GBS)
    fields = {
        "rank": None, "device": 0, "kind": kind, "name": "test", "gpu": None, "identified_by": None, "num_sms": 100,
        "memory_bytes": None, "overrides": limits,
    }  # fmt: skip
    return DeviceInfo(**(fields | overrides))  # type: ignore[arg-type]


def trace(kernels: pd.DataFrame | None = None, launches: pd.DataFrame | None = None) -> Trace:
    return Trace(
        source=Source("test.json", "0" * 64, "kineto-json", 1, 1),
        strings=tuple(f"kernel {i}" for i in range(100)),
        threads=("1/1",),
        kernels=empty_table(tables.KERNEL_COLUMNS) if kernels is None else kernels,
        launches=empty_table(tables.LAUNCH_COLUMNS) if launches is None else launches,
        ops=empty_table(tables.OP_COLUMNS),
        annotations=empty_table(tables.ANNOTATION_COLUMNS),
        syncs=empty_table(tables.SYNC_COLUMNS),
        counters=empty_table(tables.COUNTER_COLUMNS),
        metadata=Metadata(),
        quality=(),
    )


def told(
    built: timeline.Timeline, facts: Mapping[str, object] | None, world_size: int | None = None
) -> timeline.Timeline:
    """The same with what a recorder's block says of the model."""
    block = {"schema": 1, "model": dict(facts)} if facts else None
    metadata = Metadata(collector=block, world_size=world_size)
    described = of_recorder(facts, world_size) if facts else UNKNOWN
    return replace(built, trace=replace(built.trace, metadata=metadata), model=described)


ROW_DEFAULTS: Mapping[str, object] = {
    "kernel": MISSING, "op": MISSING, "launch": MISSING, "name": 0, "kind": tables.KERNEL, "device": 0, "stream": 7,
    "flops": np.nan, "bytes": np.nan, "dtype": None, "tensor_core": 0, "category": "elementwise", "role": "pointwise",
    "source": "none", "weight_bytes": np.nan, "kv_bytes": np.nan, "batch": MISSING, "step": MISSING,
}  # fmt: skip

STEP_DEFAULTS: Mapping[str, object] = {
    "device": 0, "confidence": 1.0, "evidence": (), "tokens": np.nan, "prefill_tokens": np.nan,
    "decode_tokens": np.nan, "sequences": np.nan, "prefill_sequences": np.nan, "decode_sequences": np.nan,
    "context_sum": np.nan, "query_context_sum": np.nan, "padded_tokens": np.nan, "parent_step": MISSING,
    "complete": True,
}  # fmt: skip


def line(
    rows: Sequence[Mapping[str, object]],
    steps: Sequence[Mapping[str, object]] = (),
    launches: Sequence[tuple[int, int]] = (),
    info: DeviceInfo | None = None,
) -> timeline.Timeline:
    """A timeline of `rows` (start, duration and what differs from the defaults), in start order.

    `steps` give phase, start and end; `launches` are (start, duration) pairs that rows point at by `launch`.
    """
    table = pd.DataFrame(
        [
            {**ROW_DEFAULTS, "call": i, "start_ns": row["start"], "duration_ns": row["duration"], **row}
            for i, row in enumerate(rows)
        ]
    ).drop(columns=["start", "duration"])
    found = pd.DataFrame([{**STEP_DEFAULTS, "start_ns": s["start"], "end_ns": s["end"], **s} for s in steps])
    if not len(found):
        found = pd.DataFrame({name: [] for name in (*STEP_DEFAULTS, "phase", "start_ns", "end_ns")})
    calls = empty_table(tables.LAUNCH_COLUMNS)
    if launches:
        calls = pd.DataFrame({
            "name": 0, "thread": 0, "start_ns": [s for s, _ in launches], "duration_ns": [d for _, d in launches],
            "correlation": range(len(launches)), "external_id": MISSING,
        })  # fmt: skip
    work = [
        "flops", "bytes", "dtype", "tensor_core", "category", "role", "source", "weight_bytes", "kv_bytes", "batch",
    ]  # fmt: skip
    return timeline.build(
        trace(launches=calls),
        info or device(),
        table.drop(columns=[*work, "step"]),
        table[work],
        found,
        table["step"].to_numpy(np.int32),
    )
