"""The least time a step can take: decode by its bytes and its math, prefill by its math.

Decode floor (method: decode floor): every step reads each weight once and the KV cache of every sequence once, so it
takes at least (weight bytes + KV bytes) / bandwidth; and at least its FLOPs over the peak. The floor is the longer one.
Weight bytes are what the step's own matrix kernels read; KV bytes are what its attention kernels read, or what the
cache keeps of its context where attention is not fused. Where a matrix or attention kernel of the step has no known
operand sizes but those that the description of the model gives, the description tells both as a whole, and without one
the floor is unknown. Which experts of a mixture a step reads depends on its tokens: where the work model gives a range,
so does the floor.

Prefill ideal: the FLOPs of the prefill steps over the peak of the unit and dtype each ran on.

What could be wrong: weights that stay in cache between steps (tiny models) are not read from memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis import held
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.timeline import Timeline, tensor_core_times
from traceanalyzer.catalog.weight_bits import short
from traceanalyzer.trace.tables import KERNEL

FEWEST_STEPS_FOR_SLOPE = 4
STANDARD_ERRORS = 3.0
"""A slope that is not this many times its own standard error is taken for noise."""
_BY_SHAPES = 0.9
"""How sure bytes are that are counted from shapes."""


def heavy_kernels(table: pd.DataFrame) -> pd.DataFrame:
    """The kernels that do the model's math: matrix products, convolutions and attention, without their helpers."""
    heavy = table["category"].isin((*MATRIX_CATEGORIES, "attention")) & ~table["role"].isin(HELPER_ROLES)
    return table[heavy & (table["kind"] == KERNEL)]


@dataclass(frozen=True)
class DecodeFloor:
    """Bytes and times of the median complete decode step; times in nanoseconds, None for unknown.

    `floor_ns` is the longer of `bytes_ns` and `compute_ns`; `achievable_ns` is `bytes_ns` at the bandwidth that the
    card reaches, or `compute_ns` where that is longer. `weight_bytes_min` and `weight_bytes_max` are the range where
    experts are chosen per token, None where every weight is read.
    """

    weight_bytes: float | None
    weight_bytes_min: float | None
    weight_bytes_max: float | None
    kv_bytes: float | None
    bytes_ns: float | None
    compute_ns: float | None
    floor_achievable_ns: float | None
    measured_ns: float
    busy_ns: float
    ns_per_1k_context_ideal: float | None
    ns_per_1k_context_measured: float | None
    source: str
    confidence: float
    assumptions: tuple[str, ...]

    @property
    def floor_ns(self) -> float | None:
        """The least time: by bytes, or by math where that is longer. Unknown without the bytes."""
        return None if self.bytes_ns is None else max(self.bytes_ns, self.compute_ns or 0.0)

    @property
    def ratio(self) -> float | None:
        """Measured over floor: 1 is perfect."""
        return self.measured_ns / self.floor_ns if self.floor_ns else None


@dataclass(frozen=True)
class PrefillIdeal:
    """FLOPs and times over the complete prefill steps; times in nanoseconds. `source`: of the least sure FLOPs."""

    source: str
    flops: float | None
    ideal_ns: float | None
    measured_ns: float
    confidence: float
    assumptions: tuple[str, ...]


_PER_STEP = ("weights", "least", "most", "kv", "math")


def _per_step(timeline: Timeline, steps: pd.DataFrame) -> pd.DataFrame:
    """Per step: weight bytes read (with their range), KV bytes, the math's least time; NaN where any is unknown."""
    rows = heavy_kernels(timeline.table)
    rows = rows[rows["step"].isin(steps.index)]
    attention = rows["category"] == "attention"
    parameters = ~attention & ~(rows["weight_bytes"].isna() & (rows["batch"] > 1))
    weights = rows["weight_bytes"].where(parameters, 0.0).mask(parameters & (rows["source"] == "model-config"))
    fastest = np.fmin(rows["compute_ns"].to_numpy(np.float64), tensor_core_times(rows, timeline.device))
    frame = pd.DataFrame({
        "step": rows["step"],
        "weights": weights,
        "least": rows["weight_bytes_min"].fillna(weights) if "weight_bytes_min" in rows else weights,
        "most": rows["weight_bytes_max"].fillna(weights) if "weight_bytes_max" in rows else weights,
        "kv": rows["kv_bytes"].where(attention, 0.0),
        "math": fastest,
        "attends": attention,
    })  # fmt: skip
    grouped = frame.groupby("step")
    # A sum with an unknown part is unknown: one NaN makes the step's sum NaN, which groupby's own sum would skip.
    out = grouped[list(_PER_STEP)].sum()
    out = out.mask(frame[list(_PER_STEP)].isna().groupby(frame["step"]).any())
    out["kv"] = out["kv"].where(grouped["attends"].any())
    return out.reindex(steps.index)


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
    weights, least, most, kv, math = (_median(per_step[name]) for name in _PER_STEP)
    source = "shapes" if weights else "none"
    context = _median(steps["context_sum"])
    told = None
    if not weights:
        told = held.described(timeline, _median(steps["tokens"]), context, _median(steps["sequences"]))
    if told:
        weights, least, most, kv, source = told.weight_bytes, told.least, told.most, told.kv_bytes, "model-config"
        math = math or _math(timeline, told.flops)
    unfused = source == "shapes" and kv is None and _attends_to_all(timeline, steps)
    if unfused:
        kv = _kv_kept(timeline, context)
    if source == "shapes" and _matched(timeline, steps):
        source = "graph-match"
    ranged = weights is not None and least != most
    periods = steps["period_ns"].dropna().to_numpy(np.float64)
    spans = steps["duration_ns"].to_numpy(np.float64)
    bandwidth, reach = timeline.device.bandwidth_gbs, timeline.device.achievable_gbs
    needed = None if weights is None else weights + (kv or 0.0)
    by_bytes = needed / bandwidth if needed and bandwidth else None
    by_math = by_bytes is not None and (math or 0.0) > by_bytes
    per_token = kv / context if kv and context else None
    return DecodeFloor(
        weight_bytes=weights,
        weight_bytes_min=least if ranged else None,
        weight_bytes_max=most if ranged else None,
        kv_bytes=kv,
        bytes_ns=by_bytes,
        compute_ns=math or None,
        floor_achievable_ns=max(needed / reach, math or 0.0) if needed and reach else None,
        measured_ns=float(np.median(periods if len(periods) else spans)),
        busy_ns=float(steps["busy_ns"].median()),
        ns_per_1k_context_ideal=per_token * 1000 / bandwidth if per_token and bandwidth else None,
        ns_per_1k_context_measured=context_slope(timeline, steps),
        source=source,
        confidence=_confidence(source, told.confidence if told else _BY_SHAPES, kv, ranged),
        assumptions=(
            *_assumptions(timeline, source, told, kv, ranged, bool(len(periods)), by_math),
            *(("kv_read_is_kept",) if unfused and kv is not None else ()),
        ),
    )


def _matched(timeline: Timeline, steps: pd.DataFrame) -> bool:
    """Whether any weights of these steps were told by a capture, or by another step."""
    of = timeline.table.loc[timeline.table["source"] == "graph-match", "step"]
    return bool(of.isin(steps.index).any())


def _math(timeline: Timeline, flops: float) -> float | None:
    """The least time of these FLOPs in nanoseconds: on the fastest unit that the model's weights may run on."""
    model = timeline.model
    words = [short(model.dtype), *(("fp8", "int8", "fp4") if model.weight_bits and model.weight_bits.quantized else ())]
    peaks = [peak for word in words if (peak := timeline.device.peak_tflops(word, True))]
    return flops / max(peaks) / 1e3 if peaks and flops == flops else None


def _kv_kept(timeline: Timeline, context: float | None) -> float | None:
    """KV bytes that are kept of so many tokens of context, by the recorder's facts or the writes to the cache."""
    cache = held.kv_cache(timeline, None)
    return cache.bytes_per_token * context if cache and context else None


def _attends_to_all(timeline: Timeline, steps: pd.DataFrame) -> bool:
    """Whether each step attends in batched products alone, all of which meet its whole context.

    What such products read is a copy of the cache with its heads repeated, so their own bytes do not tell the cache's.
    A window would show: its products have fewer columns and rows than the context.
    """
    rows = heavy_kernels(timeline.table)
    rows = rows[rows["step"].isin(steps.index)]
    if "n" not in rows or (rows["category"] == "attention").any():
        return False
    products = rows[rows["weight_bytes"].isna() & (rows["batch"] > 1)]
    if products["step"].nunique() < len(steps):
        return False
    of = steps.loc[products["step"]]
    keys = products[["n", "k"]].max(axis=1).to_numpy() * of["sequences"].to_numpy(np.float64)
    return bool((keys >= of["context_sum"].to_numpy(np.float64)).all())


def _confidence(source: str, sure: float, kv: float | None, ranged: bool) -> float:
    if source == "none":
        return 0.0
    return round(sure * (1.0 if kv is not None else 2 / 3) * (0.7 if ranged else 1.0), 2)


def _assumptions(
    timeline: Timeline,
    source: str,
    told: held.Described | None,
    kv: float | None,
    ranged: bool,
    has_period: bool,
    by_math: bool,
) -> tuple[str, ...]:
    assumptions = [] if has_period else ["single_step_duration"]
    if source == "none":
        assumptions += ["weights_unknown"]
        return tuple(assumptions)
    assumptions += ["kv_unknown"] if kv is None else []
    assumptions += ["weights_from_shapes"] if told is None else told.assumptions
    assumptions += ["experts_drawn_evenly"] if ranged else []
    if timeline.device.achievable_gbs is not None:
        assumptions += ["achievable_default" if timeline.device.assumed_achievable else "achievable_measured"]
    assumptions += ["math_longer_than_bytes"] if by_math else []
    return tuple(assumptions)


def context_slope(timeline: Timeline, steps: pd.DataFrame) -> float | None:
    """Nanoseconds per 1,000 more tokens of context, by least squares over steps of equally many sequences.

    Of the step's busy time where that stands clear of its own error; else of the attention kernels' time alone, which
    varies less: nothing but what reads or copies the cache grows with the context.
    """
    rows = timeline.table[(timeline.table["category"] == "attention") & (timeline.table["kind"] == KERNEL)]
    attention = rows.groupby("step")["duration_ns"].sum().reindex(steps.index)
    busy = _slope(steps, steps["busy_ns"])
    return busy if busy is not None else _slope(steps, attention)


def _slope(steps: pd.DataFrame, times: pd.Series) -> float | None:
    """The slope, where it is at least `STANDARD_ERRORS` of its own error; None with too few steps or one context."""
    known = steps["context_sum"].notna() & times.notna()
    sequences = steps["sequences"].fillna(-1)[known]
    context, took = steps["context_sum"][known].astype(np.float64), times[known].astype(np.float64)
    x = (context - context.groupby(sequences).transform("mean")).to_numpy()
    y = (took - took.groupby(sequences).transform("mean")).to_numpy()
    free = len(x) - sequences.nunique() - 1
    if len(x) < FEWEST_STEPS_FOR_SLOPE or free < 1 or not (x * x).sum() > 0:
        return None
    slope = float((x * y).sum() / (x * x).sum())
    error = float(np.sqrt(((y - slope * x) ** 2).sum() / free / (x * x).sum()))
    return slope * 1000 if slope > STANDARD_ERRORS * error else None


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
    said = set(heavy["source"]) if known else set()
    return PrefillIdeal(
        source=next((word for word in ("model-config", "graph-match") if word in said), "shapes" if known else "none"),
        flops=float(heavy["flops"].sum()) if known else None,
        ideal_ns=float(heavy["compute_ns"].sum()) if bounded else None,
        measured_ns=measured,
        confidence=0.9 if bounded else 0.0,
        assumptions=("causal_half", "dense_flops") if known else ("prefill_work_unknown",),
    )
