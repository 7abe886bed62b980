"""Raw traces as Kineto writes them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000


def step(phase: str, number: int, at: float, **more: Any) -> dict[str, Any]:
    """A step's label on the host; times are microseconds, `at` after the trace's base."""
    name = f"ta.step[{phase} n={number} tokens=4 seqs=4 ctx=40 qk=40]"
    event = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": 7, "ts": at, "dur": 50.0, "args": {}}
    return {**event, **more}


def ops(count: int, at: float = 0.0) -> list[dict[str, Any]]:
    """Operators, one microsecond each."""
    return [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": at + i, "dur": 1.0,
         "args": {"External id": i, "Ev Idx": i}}
        for i in range(count)
    ]  # fmt: skip


def facts(events: list[Any], **more: Any) -> dict[str, Any]:
    """A whole trace, before it is written."""
    head = {
        "schemaVersion": 1, "deviceProperties": [], "trace_id": "66C4583582F64C91A321FB7EB89366F6",
        "host_name": "node-17.cluster.internal", "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS,
    }  # fmt: skip
    return {**head, **more, "traceEvents": events, "traceName": "/home/someone/secret/7-1.json"}


def usual(steps: int = 3, events: int = 100) -> dict[str, Any]:
    """A prefill and decode steps."""
    labels = [step("decode" if i else "prefill", i, 100.0 * i) for i in range(steps)]
    window = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": -10.0, "dur": 100.0 * steps + 20.0,
              "pid": "Spans", "tid": "PyTorch Profiler"}  # fmt: skip
    return facts([*labels, *ops(events), window])


def write(path: Path, trace: dict[str, Any]) -> Path:
    """Put a trace on disk."""
    path.write_text(json.dumps(trace, indent=2), encoding="utf-8")
    return path
