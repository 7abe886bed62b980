"""The least time a step can take: decode by bytes, prefill by FLOPs.

Decode floor (method: decode floor): every step reads each weight once and the KV cache of every sequence once, so it
takes at least (weight bytes + KV bytes) / bandwidth. Weight bytes are what the step's own matrix kernels read; KV bytes
are what its attention kernels read. Where a matrix or attention kernel of the step has no known operand sizes, the
sum would be too small, and the floor is unknown.

Prefill ideal: the FLOPs of the prefill steps over the peak of the unit and dtype each ran on.

What could be wrong: weights that stay in cache between steps (tiny models) are not read from memory; a mixture of
experts reads only the active ones, which shapes alone do not show, so such steps have no floor here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL

MIN_STEPS_FOR_SLOPE = 8


def heavy_kernels(table: pd.DataFrame) -> pd.DataFrame:
    """The kernels that do the model's math: matrix products, convolutions and attention, without their helpers."""
    heavy = table["category"].isin((*MATRIX_CATEGORIES, "attention")) & ~table["role"].isin(HELPER_ROLES)
    return table[heavy & (table["kind"] == KERNEL)]


@dataclass(frozen=True)
class DecodeFloor:
    """Bytes and times of the median complete decode step; times in nanoseconds, None for unknown."""

    weight_bytes: float | None
    kv_bytes: float | None
    floor_ns: float | None
    floor_achievable_ns: float | None
    measured_ns: float
    busy_ns: float
    ns_per_1k_context_ideal: float | None
    ns_per_1k_context_measured: float | None
    confidence: float
    assumptions: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Measured over floor: 1 is perfect."""
        return self.measured_ns / self.floor_ns if self.floor_ns else None


@dataclass(frozen=True)
class PrefillIdeal:
    """FLOPs and times over the complete prefill steps; times in nanoseconds."""

    flops: float | None
    ideal_ns: float | None
    measured_ns: float
    confidence: float
    assumptions: tuple[str, ...]


def _per_step(timeline: Timeline, steps: pd.DataFrame) -> pd.DataFrame:
    """Per step: weight and KV bytes read, NaN where any of it is unknown; the math's least time, as far as known."""
    rows = heavy_kernels(timeline.table)
    rows = rows[rows["step"].isin(steps.index)]
    attention = rows["category"] == "attention"
    matrix = ~attention
    parameters = matrix & ~(rows["weight_bytes"].isna() & (rows["batch"] > 1))
    frame = pd.DataFrame({
        "step": rows["step"],
        "weights": rows["weight_bytes"].where(parameters, 0.0),
        "kv": rows["kv_bytes"].where(attention, 0.0),
        "attends": attention,
        "math": rows["compute_ns"],
    })  # fmt: skip
    grouped = frame.groupby("step")
    # A sum with an unknown part is unknown: one NaN makes the step's sum NaN, which groupby's own sum would skip.
    out = grouped[["weights", "kv"]].sum()
    unknown = frame[["weights", "kv"]].isna().groupby(frame["step"]).any()
    out = out.mask(unknown)
    out["math"] = grouped["math"].sum()
    out["kv"] = out["kv"].where(grouped["attends"].any())
    return out


def _median(values: pd.Series) -> float | None:
    known = values.dropna()
    return float(known.median()) if len(known) and len(known) == len(values) else None


def decode_floor(timeline: Timeline) -> DecodeFloor | None:
    """The floor of the median complete decode step, or None where the trace has no complete decode step."""
    steps = timeline.complete_steps
    steps = steps[steps["phase"] == "decode"]
    if not len(steps):
        return None
    per_step = _per_step(timeline, steps)
    weights, kv = _median(per_step["weights"]), _median(per_step["kv"])
    if weights == 0.0:
        weights = None
    spans = steps["duration_ns"].to_numpy(np.float64)
    periods = steps["period_ns"].dropna().to_numpy(np.float64)
    measured = float(np.median(periods)) if len(periods) else float(np.median(spans))
    assumptions = [] if len(periods) else ["single_step_duration"]
    bandwidth, reach = timeline.device.bandwidth_gbs, timeline.device.achievable_gbs
    if weights is None:
        assumptions.append("weights_unknown")
    elif kv is None:
        assumptions.append("kv_unknown")
    if weights is not None:
        assumptions.append("weights_from_shapes")
    if weights is not None and reach is not None:
        assumptions.append("achievable_default" if timeline.device.assumed_achievable else "achievable_measured")
    needed = None if weights is None else weights + (kv or 0.0)
    if needed and bandwidth and per_step["math"].median() > needed / bandwidth:
        assumptions.append("math_longer_than_bytes")
    context = _median(steps["context_sum"])
    per_token = kv / context if kv and context else None
    return DecodeFloor(
        weight_bytes=weights,
        kv_bytes=kv,
        floor_ns=needed / bandwidth if needed and bandwidth else None,
        floor_achievable_ns=needed / reach if needed and reach else None,
        measured_ns=measured,
        busy_ns=float(steps["busy_ns"].median()),
        ns_per_1k_context_ideal=per_token * 1000 / bandwidth if per_token and bandwidth else None,
        ns_per_1k_context_measured=_slope(steps, spans),
        confidence=0.9 if kv is not None and weights is not None else (0.6 if weights is not None else 0.0),
        assumptions=tuple(assumptions),
    )


def _slope(steps: pd.DataFrame, spans: np.ndarray) -> float | None:
    """Nanoseconds per 1,000 more tokens of context by least squares, where it stands clear of its own error.

    Needs enough steps, a context that varies, and a slope of at least three standard errors.
    """
    context = steps["context_sum"].to_numpy(np.float64)
    if len(context) < MIN_STEPS_FOR_SLOPE or np.isnan(context).any() or np.ptp(context) == 0:
        return None
    x, y = context - context.mean(), spans - spans.mean()
    slope = float((x * y).sum() / (x * x).sum())
    error = float(np.sqrt(((y - slope * x) ** 2).sum() / (len(x) - 2) / (x * x).sum()))
    return slope * 1000 if slope > 3 * error else None


def prefill_ideal(timeline: Timeline) -> PrefillIdeal | None:
    """The ideal of all complete prefill steps together, or None where the trace has none."""
    steps = timeline.complete_steps
    steps = steps[steps["phase"] == "prefill"]
    if not len(steps):
        return None
    heavy = heavy_kernels(timeline.table)
    heavy = heavy[heavy["step"].isin(steps.index)]
    known = bool(len(heavy)) and not heavy["flops"].isna().any()
    bounded = known and not heavy["compute_ns"].isna().any()
    measured = float(steps["duration_ns"].sum())
    return PrefillIdeal(
        flops=float(heavy["flops"].sum()) if known else None,
        ideal_ns=float(heavy["compute_ns"].sum()) if bounded else None,
        measured_ns=measured,
        confidence=0.9 if bounded else 0.0,
        assumptions=("causal_half", "dense_flops") if known else ("prefill_work_unknown",),
    )
