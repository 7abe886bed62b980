"""Builds a Trace from a few recorded ops, launches and kernels, so that a test states only what it is about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tests.analysis.lines import empty_table
from traceanalyzer.trace import tables
from traceanalyzer.trace.tables import KERNEL, MISSING, DeviceProperties, Metadata, Note, Source, Trace

GPU = DeviceProperties(0, "NVIDIA H100 80GB HBM3", 85_000_000_000, 9, 0, 132, 32)


@dataclass
class Recording:
    """Ops (name, start, end), launches (name, time, correlation), kernels (name, start, duration, correlation).

    Everything else has a default that a keyword overrides. Rows keep the order in which they were added, so ops are to
    be added in order of thread and start, outer ones first.
    """

    devices: tuple[DeviceProperties, ...] = (GPU,)
    notes: tuple[Note, ...] = ()
    strings: list[str] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"ops": [], "launches": [], "kernels": []})

    def code(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def op(self, name: str, start: int, end: int, dims: Sequence[object] = (), types: Sequence[str] = (),
           concrete: Sequence[str] = (), strides: Sequence[object] = (), **more: object) -> int:  # fmt: skip
        arguments = {"dims": dims, "types": types, "concrete": concrete, "strides": strides}
        texts = {key: self.code(json.dumps(value)) if dims else MISSING for key, value in arguments.items()}
        thread = more.get("thread", 0)
        around = [
            i for i, o in enumerate(self.rows["ops"])
            if o["thread"] == thread and o["start_ns"] <= start and end <= o["start_ns"] + o["duration_ns"]
        ]  # fmt: skip
        row = {
            "name": self.code(name), "thread": 0, "start_ns": start, "duration_ns": end - start, "external_id": MISSING,
            "parent": around[-1] if around else MISSING, "sequence": MISSING, **texts, **more,
        }  # fmt: skip
        self.rows["ops"].append(row)
        return len(self.rows["ops"]) - 1

    def launch(self, name: str, time: int, correlation: int = MISSING, **more: object) -> int:
        row = {"name": self.code(name), "thread": 0, "start_ns": time, "duration_ns": 1, "correlation": correlation,
               "external_id": MISSING, "launched": MISSING, "grid": MISSING, "block": MISSING, **more}  # fmt: skip
        self.rows["launches"].append(row)
        return len(self.rows["launches"]) - 1

    def kernel(self, name: str, start: int, duration: int, correlation: int = MISSING, **more: object) -> int:
        row: dict[str, Any] = dict.fromkeys(tables.KERNEL_COLUMNS, MISSING)
        row |= {"name": self.code(name), "kind": KERNEL, "start_ns": start, "duration_ns": duration, "device": 0,
                "stream": 7, "correlation": correlation, **more}  # fmt: skip
        self.rows["kernels"].append(row)
        return len(self.rows["kernels"]) - 1

    def _table(self, name: str, columns: Mapping[str, type]) -> pd.DataFrame:
        if not self.rows[name]:
            return empty_table(columns)
        return pd.DataFrame(self.rows[name])[list(columns)].astype(dict(columns))

    def trace(self) -> Trace:
        return Trace(
            source=Source("recorded.json", "0" * 64, "kineto-json", 1, 1),
            strings=tuple(self.strings),
            threads=("1/1", "1/2"),
            kernels=self._table("kernels", tables.KERNEL_COLUMNS),
            launches=self._table("launches", tables.LAUNCH_COLUMNS),
            ops=self._table("ops", tables.OP_COLUMNS),
            annotations=empty_table(tables.ANNOTATION_COLUMNS),
            syncs=empty_table(tables.SYNC_COLUMNS),
            counters=empty_table(tables.COUNTER_COLUMNS),
            metadata=Metadata(devices=self.devices),
            quality=self.notes,
        )
