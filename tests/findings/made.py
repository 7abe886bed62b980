"""Builds a phase from a list of kernels per step, so that a test states only what a rule is about.

The device reaches 100 TFLOP/s in bf16 and 1,000 GB/s: 1e5 FLOPs or 1e3 bytes take a nanosecond. What it reaches in
practice is 88 % of the bandwidth and 80 % of the peak, as for any device that nobody measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tests.analysis.lines import STEP_DEFAULTS, device, empty_table, trace
from traceanalyzer.analysis import ledger, phases, roofline, timeline
from traceanalyzer.analysis.devices import DeviceInfo
from traceanalyzer.analysis.forecast import step_model
from traceanalyzer.analysis.pipeline import DeviceAnalysis
from traceanalyzer.analysis.steps import RunFacts
from traceanalyzer.findings.evaluate import ask
from traceanalyzer.findings.model import Finding
from traceanalyzer.findings.registry import RULES
from traceanalyzer.findings.subject import PhaseSubject, of_phase
from traceanalyzer.trace import tables
from traceanalyzer.trace.tables import MISSING

US = 1_000
FLOPS_PER_NS, BYTES_PER_NS = 1e5, 1e3

ROW: Mapping[str, object] = {
    "op": MISSING, "name": 0, "kind": tables.KERNEL, "device": 0, "stream": 7, "flops": np.nan, "bytes": np.nan,
    "dtype": None, "tensor_core": 0, "category": "elementwise", "role": "pointwise", "source": "none",
    "weight_bytes": np.nan, "kv_bytes": np.nan, "estimated": False,
    **dict.fromkeys(("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"), MISSING),
}  # fmt: skip


def kernel(us: float, **more: Any) -> dict[str, Any]:
    """A kernel of so many microseconds. `gap` is idle time before it in microseconds; `late`: its launch call came
    only then; `waits`: its call began so many microseconds before it and returned when it was done; `blocks`: its
    grid."""
    return {"us": us, "gap": 0.0, "late": False, "waits": None, "blocks": 0, **more}


def gemm(us: float, memory: float, compute: float = 0.0, tokens: int = 1, **more: Any) -> dict[str, Any]:
    """A product with a weight in 16 bits whose traffic and math take so many microseconds at the peaks."""
    size = memory * US * BYTES_PER_NS
    return kernel(us, **{
        "category": "gemm", "role": "gemm", "name": 1, "tensor_core": 1, "dtype": "bf16", "bytes": size,
        "flops": compute * US * FLOPS_PER_NS, "weight_bytes": size, "m": tokens, "n": 1000, "k": size / 2000,
        "batch": 1,
    } | more)  # fmt: skip


def attention(us: float, memory: float, **more: Any) -> dict[str, Any]:
    """An attention kernel over 16-bit keys and values of one sequence."""
    size = memory * US * BYTES_PER_NS
    return kernel(us, **{
        "category": "attention", "role": "decode", "name": 2, "tensor_core": 1, "dtype": "bf16", "bytes": size,
        "flops": 0.0, "kv_bytes": size, "batch": 1, "q_len": 1, "kv_len": size / 4096, "heads": 8, "kv_heads": 8,
        "head_dim": 128,
    } | more)  # fmt: skip


def small(us: float, memory: float = 0.1, **more: Any) -> dict[str, Any]:
    """An elementwise kernel."""
    return kernel(us, **{"bytes": memory * US * BYTES_PER_NS, "flops": 0.0, "name": 3, "dtype": "fp32"} | more)


def phase(
    kernels: Sequence[Mapping[str, Any]],
    name: str = "decode",
    steps: int = 10,
    after: float = 0.0,
    facts: Mapping[str, Any] | None = None,
    run: RunFacts | None = None,
    info: DeviceInfo | None = None,
    dims: Sequence[str] = (),
    room: int | None = None,
    with_stack: bool | None = None,
    contexts: Sequence[float] | None = None,
) -> PhaseSubject:
    """Steps of these kernels, one after the other with `after` microseconds of idle time between them.

    After idle time the first kernel is launched at its end, the others are queued.

    Args:
        facts: what each step counts, one sequence and one token if nothing else is said.
        dims: recorded shapes of the ops that the kernels' `op` counts into.
    """
    rows, found, launches, grids = [], [], [], []
    now = 10_000_000
    for step in range(steps):
        begin = now
        for one in kernels:
            gap = round(one["gap"] * US)
            now += gap
            starts_over = bool(after) and now == begin and one["waits"] is None
            launches.append((begin - 3 * US, 2 * US) if starts_over else _call(one, now, gap, begin))
            grids.append(one["blocks"])
            own = {key: value for key, value in one.items() if key not in ("us", "gap", "late", "waits", "blocks")}
            number = len(rows)
            rows.append({**ROW, "kernel": number, "launch": number, "call": number, "start_ns": now, "step": step,
                         "duration_ns": round(one["us"] * US), **own})  # fmt: skip
            now += round(one["us"] * US)
        each = {
            "sequences": 1.0,
            "tokens": 1.0,
            "decode_tokens": 1.0,
            "decode_sequences": 1.0,
            "context_sum": 500.0 + step,
        }
        if contexts is not None:
            each["context_sum"] = contexts[step]
        found.append({**STEP_DEFAULTS, "phase": name, "start_ns": begin, "end_ns": now, **each, **(facts or {})})
        now += round(after * US)
    line = _timeline(pd.DataFrame(rows), pd.DataFrame(found), launches, grids, dims, info, with_stack)
    book = ledger.account(line)
    facts_of_run = run or RunFacts("generation", None, "eager", 1)
    device = DeviceAnalysis(line, book, roofline.by_kernel(line), phases.summarize(line, book))
    about = of_phase(device, step_model(line, book, name), facts_of_run, name)
    assert about is not None
    return replace(about, room=room)


def _call(one: Mapping[str, Any], start: int, gap: int, step: int) -> tuple[int, int]:
    """When the launch call of a kernel that starts then began, and how long it took."""
    if one["waits"] is not None:
        return start - round(one["waits"] * US), round((one["waits"] + one["us"]) * US) + 500
    # A late call begins 1 us after the device fell idle, and the kernel starts 2 us after it returned.
    return (start - gap + US, max(gap - 3 * US, 0)) if one["late"] else (step - 1_000_000, 2 * US)


def _timeline(
    rows: pd.DataFrame, steps: pd.DataFrame, launches: list[tuple[int, int]], grids: list[int], dims: Sequence[str],
    info: DeviceInfo | None, with_stack: bool | None,
) -> timeline.Timeline:  # fmt: skip
    calls = pd.DataFrame({
        "name": 90, "thread": 0, "start_ns": [s for s, _ in launches], "duration_ns": [d for _, d in launches],
        "correlation": range(1, len(launches) + 1), "external_id": MISSING,
    })  # fmt: skip
    kernels = empty_table(tables.KERNEL_COLUMNS).reindex(range(len(rows))).assign(
        kind=tables.KERNEL, correlation=range(1, len(rows) + 1), graph_id=MISSING, graph_node_id=MISSING,
        grid_x=grids, grid_y=1, grid_z=1, blocks_per_sm=np.nan,
    )  # fmt: skip
    strings = [f"kernel {i}" for i in range(100)]
    strings[50], strings[90], strings[91] = (
        "Memcpy DtoH (Device -> Pinned)",
        "cudaLaunchKernel",
        "cudaStreamSynchronize",
    )
    ops = empty_table(tables.OP_COLUMNS).reindex(range(len(dims))).assign(dims=range(100, 100 + len(dims)))
    recorded = trace(kernels=kernels, launches=calls)
    metadata = replace(recorded.metadata, with_stack=with_stack)
    recorded = replace(recorded, strings=(*strings, *dims), ops=ops, metadata=metadata)
    work = ["flops", "bytes", "dtype", "tensor_core", "category", "role", "source", "weight_bytes", "kv_bytes",
            "m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "estimated"]  # fmt: skip
    return timeline.build(
        recorded,
        info or device(),
        rows.drop(columns=[*work, "step"]),
        rows[work],
        steps,
        rows["step"].to_numpy(np.int32),
    )


def asked(rule: str, about: PhaseSubject | None) -> Finding:
    """The answer of one rule."""
    (found,) = (one for one in RULES if one.id == rule)
    return ask(found, about)


def says(finding: Finding) -> str:
    """Its status and reason in short."""
    return f"{finding.status}: {finding.reason.code}" if finding.reason else finding.status
