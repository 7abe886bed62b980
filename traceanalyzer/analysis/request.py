"""What one request sees: time to the first token, time per output token, and how the work divides.

From a trace of steps only: TTFT is the prefill's time on the device (no queueing, no network), TPOT the period of the
decode steps. A window that holds one prefill followed by decode steps of the same sequences is one request, or one
batch of equal requests; in any other window the lengths are unknown and only the TPOT stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.timeline import Timeline


@dataclass(frozen=True)
class RequestView:
    """Lengths in tokens per sequence, times in nanoseconds, None for unknown."""

    input_tokens: int | None
    output_tokens: int | None
    ttft_ns: float | None
    tpot_ns_p50: float | None
    tpot_ns_p99: float | None
    decode_over_prefill_flops: float | None


def view(timeline: Timeline) -> RequestView | None:
    """The request's view, or None where the trace has no complete decode step and no complete prefill."""
    steps = timeline.complete_steps
    steps = steps[steps["phase"].isin(("prefill", "decode", "mixed"))]
    if not len(steps):
        return None
    decode = steps[steps["phase"] == "decode"]
    prefill = steps[steps["phase"] == "prefill"]
    single = _is_one_batch(steps)
    sequences = int(prefill["sequences"].iloc[0]) if single else None
    periods = _decode_periods(timeline, decode)
    first = prefill.iloc[0] if single else None
    return RequestView(
        input_tokens=int(first["prefill_tokens"] // sequences) if first is not None and sequences else None,
        output_tokens=len(decode) + 1 if single else None,
        ttft_ns=float(first["duration_ns"]) if first is not None else None,
        tpot_ns_p50=float(np.percentile(periods, 50)) if len(periods) else None,
        tpot_ns_p99=float(np.percentile(periods, 99)) if len(periods) else None,
        decode_over_prefill_flops=_work_ratio(timeline, prefill, decode) if single else None,
    )


def _is_one_batch(steps: pd.DataFrame) -> bool:
    """One prefill first, then only decode steps of as many sequences, each with one token per sequence."""
    phases = steps["phase"].tolist()
    if phases[0] != "prefill" or any(phase != "decode" for phase in phases[1:]) or len(phases) < 2:
        return False
    counts = steps["sequences"]
    same = bool(counts.notna().all()) and counts.nunique() == 1
    first = steps["prefill_tokens"].iloc[0]
    decode = steps.iloc[1:]
    single_token = bool((decode["tokens"] == decode["sequences"]).all())
    return same and single_token and bool(pd.notna(first)) and first % counts.iloc[0] == 0


def _decode_periods(timeline: Timeline, decode: pd.DataFrame) -> np.ndarray:
    """Periods of decode steps that another decode step follows: a prefill in between is not a token's time."""
    names = timeline.steps["phase"]
    followed = names.shift(-1).loc[decode.index] == "decode"
    return decode.loc[followed.to_numpy(bool), "period_ns"].dropna().to_numpy(np.float64)


def _work_ratio(timeline: Timeline, prefill: pd.DataFrame, decode: pd.DataFrame) -> float | None:
    """FLOPs of the median decode step over those of the whole prefill, where the heavy kernels' work is known."""
    rows = timeline.table[timeline.table["category"].isin(("gemm", "gemv", "attention", "moe"))]
    flops = rows.groupby("step")["flops"].agg(lambda values: values.sum(skipna=False))
    whole = flops.reindex(prefill.index).sum(skipna=False)
    step = flops.reindex(decode.index)
    if step.isna().any() or pd.isna(whole) or not whole:
        return None
    return float(step.median() / whole)
