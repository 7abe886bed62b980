"""Builds small traces by hand: what the host launched, what the device ran, and the work each kernel is said to do.

The host clock advances with every launch; a device stream runs in order, starts a kernel no sooner than `lag` after its
launch, and so may be far behind the host. Nothing here uses the product's own logic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.trace.tables import (
    ANNOTATION_COLUMNS,
    COUNTER_COLUMNS,
    GPU_USER,
    KERNEL,
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    MISSING,
    OP_COLUMNS,
    SYNC_COLUMNS,
    USER,
    Metadata,
    Source,
    Trace,
)

HIDDEN, FFN, VOCAB, HEADS = 512, 1376, 32000, 8
INTEGERS = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
LAUNCH_NS, GAP_NS = 4_000, 1_000


class Recording:
    """A trace under construction. Times are nanoseconds."""

    def __init__(self, lag: int = 5_000, metadata: Metadata | None = None) -> None:
        self.now, self.lag = 0, lag
        self.metadata = metadata or Metadata()
        self.strings: dict[str, int] = {}
        self.kernels: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.free: dict[tuple[int, int], int] = {}
        self.correlation = 0

    def code(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    @contextmanager
    def annotate(self, name: str, thread: int = 1, on_host: bool = True, on_device: bool = False) -> Iterator[None]:
        """A labelled host range; `on_device` adds the profiler's copy around the kernels launched inside."""
        start, first = self.now, len(self.kernels)
        identity = len(self.annotations) + 1
        self.now += 100
        yield
        self.now += 100
        common = {"name": self.code(name), "thread": thread, "external_id": identity}
        if on_host:
            self.annotations.append(
                common | {"kind": USER, "start_ns": start, "duration_ns": self.now - start, "device": MISSING}
            )
        inside = self.kernels[first:]
        for stream in {k["stream"] for k in inside} if on_device else ():
            spans = [(k["start_ns"], k["start_ns"] + k["duration_ns"]) for k in inside if k["stream"] == stream]
            begin, end = min(s for s, _ in spans), max(e for _, e in spans)
            self.annotations.append(
                common
                | {"kind": GPU_USER, "start_ns": begin, "duration_ns": end - begin, "device": 0, "stream": stream}
            )

    def op(self, name: str, dims: list[Any] | None = None, thread: int = 1) -> int:
        """A host op; returns its row."""
        text = self.code(json.dumps(dims)) if dims is not None else MISSING
        self.ops.append(
            {"name": self.code(name), "thread": thread, "start_ns": self.now, "duration_ns": 500, "dims": text}
        )
        self.now += 500
        return len(self.ops) - 1

    def launch(self, name: str = "cudaLaunchKernel", thread: int = 1) -> int:
        """A launch call; returns its row."""
        self.correlation += 1
        self.launches.append(
            {
                "name": self.code(name),
                "thread": thread,
                "start_ns": self.now,
                "duration_ns": 2_000,
                "correlation": self.correlation,
            }
        )
        self.now += LAUNCH_NS
        return len(self.launches) - 1

    def kernel(
        self, category: str, name: str = "", *, launch: int | None = None, launched: bool = True, recorded: bool = True,
        duration: int = 10_000, stream: int = 7, device: int = 0, thread: int = 1, role: str = "",
        grid_x: int = MISSING, op: int = MISSING, estimated: bool = False, **sizes: int,
    ) -> None:  # fmt: skip
        """A kernel and its launch. `launched=False`: from before the window; `recorded=False`: its record is lost."""
        row = self.launch(thread=thread) if launch is None and launched else launch
        if not recorded:
            return
        submitted = self.launches[row]["start_ns"] if row is not None else 0
        start = max(self.free.get((device, stream), 0), submitted + self.lag)
        self.free[(device, stream)] = start + duration + GAP_NS
        text = self.code(name or f"{category}_kernel")
        self.kernels.append(
            {
                "name": text,
                "kind": KERNEL,
                "start_ns": start,
                "duration_ns": duration,
                "device": device,
                "stream": stream,
                "correlation": self.launches[row]["correlation"] if row is not None else MISSING,
                "grid_x": grid_x,
            }
        )
        work = {"category": category, "role": role or category, "estimated": estimated}
        work |= {column: sizes.get(column, MISSING) for column in INTEGERS}
        self.rows.append(work | {"launch": MISSING if row is None else row, "op": op})

    def gemm(self, m: int, n: int, k: int, **more: Any) -> None:
        self.kernel("gemm", f"gemm_{n}x{k}", m=m, n=n, k=k, batch=1, **more)

    def layer(self, tokens: int, q: int = MISSING, k: int = MISSING, batch: int = MISSING, **more: Any) -> None:
        """One transformer layer; `shapes=False` leaves the sizes out, `attention` names the attention kernel."""
        shapes, name = more.pop("shapes", True), more.pop("attention", "attention_kernel")
        m = tokens if shapes else MISSING
        self.kernel("norm", **more)
        self.gemm(m, 3 * HIDDEN if shapes else MISSING, HIDDEN if shapes else MISSING, **more)
        if more.pop("kv_write", False):
            self.kernel("kv_cache", "reshape_and_cache", grid_x=tokens if shapes else MISSING, **more)
        self.kernel("attention", name, q_len=q, kv_len=k, batch=batch, **more)
        self.gemm(m, HIDDEN if shapes else MISSING, HIDDEN if shapes else MISSING, **more)
        self.gemm(m, FFN if shapes else MISSING, HIDDEN if shapes else MISSING, **more)
        self.gemm(m, HIDDEN if shapes else MISSING, FFN if shapes else MISSING, **more)

    def forward(
        self, tokens: int, logits: int | None, layers: int = 4, ids: list[int] | None = None, sample: bool = True,
        **more: Any,
    ) -> None:  # fmt: skip
        """One pass: ids looked up (None: compiled away), layers, lm_head (None: none), argmax."""
        place = {name: more[name] for name in ("thread", "device", "stream") if name in more}
        if ids is not None:
            op = self.op("aten::embedding", [[VOCAB, HIDDEN], ids, [], [], []], thread=more.get("thread", 1))
            self.kernel("embedding", op=op, **place)
        for _ in range(layers):
            self.layer(tokens, **more)
        if logits is not None:
            sized = more.get("shapes", True)
            self.gemm(*((logits, VOCAB, HIDDEN) if sized else (MISSING, MISSING, MISSING)), **place)
        if logits is not None and sample:
            self.kernel("sampling", "argmax", **place)

    def graph(self, layers: int = 4, name: str = "cudaGraphLaunch", attention: str = "attention_kernel") -> None:
        """One launch that replays all layers; a replayed kernel has no shapes."""
        launch = self.launch(name)
        for _ in range(layers):
            self.layer(MISSING, shapes=False, launch=launch, attention=attention)

    def build(self) -> tuple[Trace, Activity, pd.DataFrame]:
        """The trace, its activity and its work, with kernels in start order."""
        order = sorted(range(len(self.kernels)), key=lambda i: (self.kernels[i]["device"], self.kernels[i]["start_ns"]))
        kernels = _table([self.kernels[i] for i in order], KERNEL_COLUMNS)
        rows = [self.rows[i] for i in order]
        trace = Trace(
            source=Source("made.json", "0" * 64, "kineto-json", 0, len(kernels)),
            strings=tuple(self.strings),
            threads=("main", "worker", "other"),
            kernels=kernels,
            launches=_table(self.launches, LAUNCH_COLUMNS),
            ops=_table(self.ops, OP_COLUMNS),
            annotations=_table(self.annotations, ANNOTATION_COLUMNS),
            syncs=_table([], SYNC_COLUMNS),
            counters=_table([], COUNTER_COLUMNS),
            metadata=self.metadata,
            quality=(),
        )
        table = kernels[["name", "kind", "start_ns", "duration_ns", "device", "stream"]].assign(
            kernel=np.arange(len(kernels), dtype=np.int32),
            op=np.array([row["op"] for row in rows], np.int32),
            launch=np.array([row["launch"] for row in rows], np.int32),
            call=np.arange(len(kernels), dtype=np.int32),
        )
        work = pd.DataFrame({name: np.array([row[name] for row in rows], np.int64) for name in INTEGERS})
        work = work.assign(
            category=pd.Series([row["category"] for row in rows], dtype=object),
            role=pd.Series([row["role"] for row in rows], dtype=object),
            estimated=np.array([row["estimated"] for row in rows], np.bool_),
        )
        return trace, Activity(table, on_cpu=False), work


def _table(rows: list[dict[str, Any]], columns: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {name: np.array([row.get(name, MISSING) for row in rows], dtype) for name, dtype in columns.items()}
    )
