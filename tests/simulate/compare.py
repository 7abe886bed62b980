"""Holds an analysis against a simulated trace's truth: every aspect gives the list of what differs.

Exact where both sides count the same thing; a relative 1e-6 for sums of floats; half a per cent of the span for each
bucket of the ledger. Where the analysis states a range (which experts are read depends on the tokens), the truth must
lie in it, and near the expected value, for the simulator draws evenly. What the analysis does not claim (NaN, None) is
no difference here but for `coverage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from traceanalyzer.analysis.pipeline import Analysis

CLOSE = 1e-6
WEIGHTS = 5e-4
"""The truth counts the norms' weights among what a pass reads, the analysis those of matrices: less than this share."""
DRAWN = 0.025
"""How far a sum over layers may be from its expected value where each layer's experts are drawn."""
OF_THE_SPAN = 0.005
COVERED = 0.95
_HEAVY = ("gemm", "gemv", "attention", "moe")
_STEP_COUNTS = (
    "phase", "tokens", "prefill_tokens", "decode_tokens", "sequences", "prefill_sequences", "decode_sequences",
    "context_sum", "query_context_sum", "start_ns", "end_ns", "busy_ns", "period_ns", "complete",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An analysis and the truth of the trace it was made from."""

    analysis: Analysis
    truth: Mapping[str, Any]


def differs(name: str, found: object, true: object, close: float = 0.0) -> list[str]:
    """One line where two values differ by more than a relative `close`; both unknown is no difference."""
    if pd.isna(found) and pd.isna(true):  # type: ignore[call-overload]
        return []
    if isinstance(found, str) or isinstance(true, str) or pd.isna(found) or pd.isna(true):  # type: ignore[call-overload]
        same = found == true
    else:
        same = abs(float(found) - float(true)) <= close * max(abs(float(true)), 1.0)  # type: ignore[arg-type]
    return [] if same else [f"{name}: found {found}, true {true}"]


def _claimed(name: str, found: float | None, true: float | None, close: float) -> list[str]:
    """As `differs`, but nothing found is nothing claimed."""
    return [] if found is None else differs(name, found, true, close)


def ranged(name: str, low: float, expected: float, high: float, true: float) -> list[str]:
    """As `differs`, for an estimate: one line where the truth is outside the range or far from what is expected."""
    inside = low * (1 - WEIGHTS) <= true <= high * (1 + WEIGHTS)
    return ([] if inside else [f"{name}: found {low} to {high}, true {true}"]) + differs(name, expected, true, DRAWN)


def span(case: Case) -> list[str]:
    line, truth = case.analysis.main.timeline, case.truth["span"]
    return [
        *differs("start", line.start_ns, truth["start_ns"]),
        *differs("end", line.end_ns, truth["end_ns"]),
        *differs("busy", line.busy.length, truth["busy_ns"]),
        *differs("kernels busy", line.kernel_busy.length, truth["kernel_busy_ns"]),
        *differs("activities", len(line.table), truth["kernels"] + truth["copies"]),
    ]


def steps(case: Case) -> list[str]:
    found, true = case.analysis.main.timeline.steps, pd.DataFrame(case.truth["steps"])
    true = true[true["complete"].to_numpy(bool)]
    found = found[found["complete"].to_numpy(bool)]
    if len(found) != len(true):
        return [f"{len(found)} complete steps found, true {len(true)}"]
    return [
        line
        for name in _STEP_COUNTS
        for index, (one, other) in enumerate(zip(found[name].tolist(), true[name].tolist(), strict=True))
        for line in differs(f"step {index} {name}", one, other)
    ]


def kernels(case: Case) -> list[str]:
    trace = case.analysis.main.timeline.trace
    found = {(row.phase, trace.text(row.name)): row for row in case.analysis.main.kernels.itertuples()}
    ranges = _ranges(case)
    lines: list[str] = []
    for true in case.truth["kernels"]:
        key = true["phase"], true["name"]
        row = found.pop(key, None)
        if row is None:
            lines.append(f"{key} was not found")
            continue
        where = f"{true['phase']} {true['role']} {true['name'][:60]}"
        lines += differs(f"{where}: count", row.count, true["count"])
        lines += differs(f"{where}: time", row.duration_ns, true["total_ns"])
        for name in ("flops", "bytes"):
            if pd.isna(getattr(row, name)) or true[name] is None:
                continue
            if name == "bytes" and key in ranges:
                low, high = ranges[key]
                lines += ranged(f"{where}: bytes", low, row.bytes, high, true["bytes"])
            else:
                lines += differs(f"{where}: {name}", getattr(row, name), true[name], CLOSE)
        if true["role"] in _HEAVY and not pd.isna(row.flops):
            lines += differs(f"{where}: dtype", row.dtype, true["dtype"])
            lines += differs(f"{where}: tensor core", int(row.tensor_core == 1), int(true["tensor_core"]))
    return lines + [f"{key} is not true" for key in found if "Mem" not in key[1]]


def _ranges(case: Case) -> dict[tuple[str, str], tuple[float, float]]:
    """The least and the most bytes of each (phase, kernel name) whose weights are an estimate."""
    line = case.analysis.main.timeline
    rows = line.table[line.table["weight_bytes_max"].notna()]
    rest = rows["bytes"] - rows["weight_bytes"]
    ends = pd.DataFrame({"low": rest + rows["weight_bytes_min"], "high": rest + rows["weight_bytes_max"]})
    sums = ends.groupby([rows["phase"].astype(str), rows["name"]]).sum()
    return {
        (str(phase), line.trace.text(int(name))): (float(low), float(high))
        for (phase, name), low, high in sums.itertuples(name=None)
        if high > low
    }


def coverage(case: Case) -> list[str]:
    """What the analysis should know and does not say."""
    lines = []
    found, true = case.analysis.decode_floor, case.truth["decode_floor"]
    for name in ("weight_bytes", "kv_bytes", "floor_ns"):
        if found is not None and true is not None and true[name] and getattr(found, name) is None:
            lines.append(f"floor: {name} is unknown")
    if case.analysis.prefill_ideal is not None and case.analysis.prefill_ideal.ideal_ns is None:
        lines.append("ideal: unknown")
    for phase in case.analysis.main.phases:
        for name in ("flops_known_share", "bytes_known_share"):
            share = getattr(phase, name)
            if share is None or share < COVERED:
                lines.append(f"{phase.phase}: {name} {share}")
    return lines


def sums(case: Case) -> list[str]:
    lines = []
    for phase in case.analysis.main.phases:
        true = case.truth["phases"].get(phase.phase)
        if true is None:
            lines.append(f"phase {phase.phase} is not true")
            continue
        for name in ("duration_ns", "busy_ns"):  # the nanosecond that rounding is over goes to any phase
            found, whole = getattr(phase, name), true[name]
            lines += [] if abs(found - whole) <= 1 else differs(f"{phase.phase}: {name}", found, whole)
        lines += differs(f"{phase.phase}: steps", phase.steps, true["steps"])
        for name in ("flops", "bytes"):
            if getattr(phase, f"{name}_known_share") == 1.0 and true[name] is not None:
                lines += differs(f"{phase.phase}: {name}", getattr(phase, name), true[name], CLOSE)
    return lines


def _ledgers(case: Case) -> list[tuple[str, str, int, int]]:
    """(phase, bucket, found, true) in ns, of every bucket that either side has."""
    found = {(row.phase, row.bucket): int(row.ns) for row in case.analysis.main.ledger.table.itertuples()}
    true = {(row["phase"], row["bucket"]): int(row["ns"]) for row in case.truth["ledger"]}
    return [(*key, found.get(key, 0), true.get(key, 0)) for key in sorted({*found, *true})]


def _buckets(case: Case, idle: bool) -> list[str]:
    limit = OF_THE_SPAN * case.truth["span"]["span_ns"]
    rows = [row for row in _ledgers(case) if row[1].startswith("idle_") == idle]
    # A band of unknown time is no claim: then only the whole of tensor-core time can be held against the truth.
    unknown = {phase for phase, bucket, found, true in rows if bucket == "tensor_core_unknown" and found > true + limit}
    together: dict[tuple[str, str], list[int]] = {}
    for phase, bucket, found, true in rows:
        group = "tensor cores" if phase in unknown and bucket.startswith("tensor_core_") else bucket
        total = together.setdefault((phase, group), [0, 0])
        total[0], total[1] = total[0] + found, total[1] + true
    return [
        f"{phase} {bucket}: found {found}, true {true}"
        for (phase, bucket), (found, true) in together.items()
        if abs(found - true) > limit
    ]


def ledger(case: Case) -> list[str]:
    rows = _ledgers(case)
    lines = _buckets(case, idle=False)
    for phase in sorted({row[0] for row in rows}):
        idle = [(found, true) for name, bucket, found, true in rows if name == phase and bucket.startswith("idle_")]
        lines += differs(f"{phase}: idle", sum(found for found, _ in idle), sum(true for _, true in idle))
    return lines


def idle(case: Case) -> list[str]:
    return _buckets(case, idle=True)


def floor(case: Case) -> list[str]:
    found, true = case.analysis.decode_floor, case.truth["decode_floor"]
    if found is None or true is None:
        return [] if found is true else [f"floor: found {found}, true {true}"]
    least, expected, most = found.weight_bytes_min, found.weight_bytes, found.weight_bytes_max
    if least is None or expected is None or most is None:
        weights = _claimed("weights", expected, true["weight_bytes"], WEIGHTS)
    else:
        weights = ranged("weights", least, expected, most, true["weight_bytes"])
    near = WEIGHTS if least is None else DRAWN
    return [
        *weights,
        *_claimed("KV", found.kv_bytes, true["kv_bytes"], CLOSE),
        *(_claimed("floor", found.floor_ns, true["floor_ns"], near) if found.kv_bytes is not None else []),
        *differs("measured", found.measured_ns, true["measured_ns"]),
        *differs("busy", found.busy_ns, true["busy_ns"]),
    ]


def ideal(case: Case) -> list[str]:
    found, true = case.analysis.prefill_ideal, case.truth["prefill_ideal"]
    if found is None or true is None:
        return [] if found is true else [f"ideal: found {found}, true {true}"]
    return [
        *_claimed("FLOPs", found.flops, true["flops"], CLOSE),
        *_claimed("ideal", found.ideal_ns, true["ideal_ns"], CLOSE),
        *differs("measured", found.measured_ns, true["measured_ns"]),
    ]


def request(case: Case) -> list[str]:
    """Lengths and TTFT where the analysis claims them; the TPOT in any case."""
    found, true = case.analysis.request, case.truth["request"]
    if found is None:
        return ["no request was found"]
    if true["tpot_ns_p50"] is None:  # no request is whole in the window
        return []
    lines = differs("TPOT", found.tpot_ns_p50, true["tpot_ns_p50"])
    if found.input_tokens is not None:
        lines += differs("in", found.input_tokens, true["input_tokens"])
        lines += differs("out", found.output_tokens, true["output_tokens"])
        lines += differs("TTFT", found.ttft_ns, true["ttft_ns_p50"])
    return lines


ASPECTS: Mapping[str, Callable[[Case], list[str]]] = {
    "span": span, "steps": steps, "kernels": kernels, "coverage": coverage, "sums": sums, "ledger": ledger,
    "idle": idle, "floor": floor, "ideal": ideal, "request": request,
}  # fmt: skip
