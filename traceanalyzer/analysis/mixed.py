"""How the time of mixed steps divides between the prompts they read and the sequences they decode.

Three ways, the surest that a step allows (method: cost per token):
    decode_steps     What the prefill adds: the step's time less that of decode steps of like batch in the same trace
                     (sequences, tokens and context within 25 %). The weights are then the decode's, which would read
                     them anyway. `decode_steps_any_context` where the contexts cannot be compared.
    attention_apart  Attention kernels that serve one side each count for it by their time; the rest by tokens.
    roofline         By least times at what the card reaches: attention's math or its cache, whichever is longer, of
                     each side, and the weight products (math or weights) by tokens.
A step's time is its busy time; idle time follows it in proportion. Steps whose tokens of either side are not known are
not divided: how many of the sequences were reading is then a guess.

What could be wrong: the first way and the others answer different questions. What a chunk adds to a step that runs
anyway may be little; by tokens it is most of the step. In the roofline way a sliding window makes both contexts
shorter, and chunks of several prompts are taken to be of one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from traceanalyzer.analysis.floor import heavy_kernels
from traceanalyzer.analysis.intervals import Floats
from traceanalyzer.analysis.steps.hints import name_hint
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.work.columns import Bools

CONFIDENCE = MappingProxyType(
    {"decode_steps": 0.85, "decode_steps_any_context": 0.7, "attention_apart": 0.75, "roofline": 0.5}
)
"""How sure each way's shares are, 0 to 1; in the order in which the ways are tried."""

ALIKE = 1.25
"""Within this factor two batches are alike."""
_AS_CLOSE = 0.05
"""Decode steps this much (in the log of the ratios) further off than the nearest one serve as well: their median
counts, so that one slow step does not decide."""
_ENOUGH = 0.8
"""Share of the mixed steps' time that must have been divided before the rest is taken to divide alike."""
_CLEARLY = 4.0
"""Attention of prompts does so many times the FLOPs per byte of a decode's."""


@dataclass(frozen=True)
class Split:
    """The prefill's share of the mixed steps' time, 0 to 1, how sure that is, and the ways it was found.

    `confidence` is the mean of the steps', by time; `ways` are keys of `CONFIDENCE`, the one with most time first.
    """

    prefill_share: float
    confidence: float
    ways: tuple[str, ...]


def split(timeline: Timeline) -> Split | None:
    """The division of all complete mixed steps; None without one, or where under 80 % of their time divides."""
    steps = timeline.complete_steps
    busy = steps.loc[steps["phase"] == "mixed", "busy_ns"].astype(np.float64)
    found = by_step(timeline)
    divided = found["prefill_share"].notna()
    total, known = float(busy.sum()), float(busy[divided].sum())
    if not known or known < _ENOUGH * total:
        return None
    weights = busy[divided] / known
    times = weights.groupby(found.loc[divided, "way"]).sum().sort_values(ascending=False, kind="stable")
    ways = tuple(str(way) for way in times.index)
    sure = sum(CONFIDENCE[way] * float(times[way]) for way in ways)
    return Split(float((weights * found.loc[divided, "prefill_share"]).sum()), round(sure, 2), ways)


def by_step(timeline: Timeline) -> pd.DataFrame:
    """Per complete mixed step: prefill_share (0 to 1, NaN: not divided) and way (a key of `CONFIDENCE`, or None)."""
    steps = timeline.complete_steps
    steps = steps[steps["phase"] == "mixed"]
    share, way = np.full(len(steps), np.nan), np.full(len(steps), None, object)
    known = (steps["prefill_tokens"] > 0).to_numpy() & (steps["decode_tokens"] > 0).to_numpy()
    if known.any():
        batches = _batches(steps)
        added, context_known = _added(timeline, batches)
        tried = (
            ("decode_steps", np.where(context_known, added, np.nan)),
            ("decode_steps_any_context", np.where(context_known, np.nan, added)),
            ("attention_apart", _attention_apart(timeline, batches)),
            ("roofline", _roofline(timeline, batches)),
        )
        for name, shares in tried:
            new = known & np.isnan(share) & ~np.isnan(shares)
            share[new], way[new] = shares[new], name
    return pd.DataFrame({"prefill_share": share, "way": way}, index=steps.index)


def _batches(steps: pd.DataFrame) -> pd.DataFrame:
    """What each step reads and decodes, in tokens; NaN for unknown.

    Columns: busy_ns, prefill, decode, sequences (that decode), context (of those), read (context of those that read),
    total (both contexts), each (tokens of one chunk).

    With q queries and k keys per sequence the labels give sum(k) = C and sum(q k). A decode has q = 1, a chunk
    q = P / n, so the chunks' keys are (sum(q k) - C) / (P / n - 1): exact for one prompt, or for equal chunks.
    """
    out = pd.DataFrame({
        "busy_ns": steps["busy_ns"], "prefill": steps["prefill_tokens"],
        "decode": steps["decode_tokens"], "sequences": steps["decode_sequences"], "total": steps["context_sum"],
    }).astype(np.float64)  # fmt: skip
    readers = steps["prefill_sequences"].to_numpy(np.float64)
    each = out["prefill"] / readers
    single = out["decode"] == out["sequences"]
    read = (steps["query_context_sum"].to_numpy(np.float64) - out["total"]) / (each - 1).where(each > 1)
    read = read.where(single).clip(out["prefill"], out["total"] - out["sequences"])
    return out.assign(context=out["total"] - read, read=read, each=each)


def _added(timeline: Timeline, batches: pd.DataFrame) -> tuple[Floats, Bools]:
    """What the prefill adds to decode steps of like batch, as a share of each step, and whether contexts were compared.

    Where it is not known which part of a step's context decodes, the most it can be (all but the chunk) still rules
    out the decode steps that hold more.
    """
    steps = timeline.complete_steps
    steps = steps[(steps["phase"] == "decode") & (steps["parent_step"] < 0) & (steps["decode_sequences"] > 0)]
    steps = steps.sort_values("decode_sequences", kind="stable")
    took = steps["busy_ns"].to_numpy(np.float64)
    sequences, tokens, context = (
        np.log(steps[name].to_numpy(np.float64)) for name in ("decode_sequences", "decode_tokens", "context_sum")
    )
    own = np.log(batches[["sequences", "decode", "context"]].where(batches["sequences"] > 0).to_numpy(np.float64))
    most = np.log((batches["total"] - batches["prefill"]).where(lambda room: room > 0).to_numpy(np.float64))
    busy = batches["busy_ns"].to_numpy(np.float64)
    near = np.log(ALIKE)
    share, compared = np.full(len(batches), np.nan), np.zeros(len(batches), np.bool_)
    for i, (own_sequences, own_tokens, own_context) in enumerate(own):
        low, high = np.searchsorted(sequences, (own_sequences - near - 1e-9, own_sequences + near + 1e-9))
        each = context[low:high] - sequences[low:high]
        off = [np.abs(sequences[low:high] - own_sequences), np.abs(tokens[low:high] - own_tokens)]
        compared[i] = not np.isnan(each - own_context).all()
        if compared[i]:
            off.append(np.abs(each - (own_context - own_sequences)))
        alike = (np.max(off, axis=0) <= near + 1e-9) & ~(each + own_sequences > most[i] + near)
        if alike.any():
            far = np.where(alike, np.sum(off, axis=0), np.inf)
            reference = float(np.median(took[low:high][far <= far.min() + _AS_CLOSE]))
            share[i] = 1.0 - reference / busy[i] if reference < busy[i] else np.nan
    return share, compared


def _attention_apart(timeline: Timeline, batches: pd.DataFrame) -> Floats:
    """Share by attention kernels that serve one side each, the rest of the step by tokens; NaN where none are apart.

    They are apart in a step that runs as many for one side as for the other, and none that may serve both.
    """
    rows = heavy_kernels(timeline.table)
    rows = rows[(rows["category"] == "attention") & rows["step"].isin(batches.index)]
    side = rows["name"].map(_sides(timeline, rows))
    sides = ("prefill", "decode", "")
    counts = pd.crosstab(rows["step"], side).reindex(index=batches.index, columns=sides, fill_value=0)
    apart = (counts["prefill"] == counts["decode"]) & (counts["prefill"] > 0) & (counts[""] == 0)
    reads, decodes = (
        rows["duration_ns"].where(side == name, 0).groupby(rows["step"]).sum().reindex(batches.index)
        for name in sides[:2]
    )
    rest = (batches["busy_ns"] - reads - decodes).clip(lower=0.0)
    by_tokens = batches["prefill"] / (batches["prefill"] + batches["decode"])
    return ((reads + rest * by_tokens) / (reads + decodes + rest)).where(apart).to_numpy(np.float64)


def _sides(timeline: Timeline, attention: pd.DataFrame) -> dict[int, str]:
    """Which side each attention kernel of the mixed steps serves, by name code: prefill, decode or "" for unknown.

    By what names and template arguments say, else, of two, by their FLOPs per byte.
    """
    codes = [int(code) for code in attention["name"].unique()]
    found = {code: name_hint(timeline.trace.text(code))[0] for code in codes}
    if all(found.values()) or len(codes) != 2:
        return found
    totals = attention.groupby("name")[["flops", "bytes"]].sum(min_count=1)
    ranked = (totals["flops"] / totals["bytes"]).sort_values(kind="stable")
    if not ranked.iloc[1] >= _CLEARLY * ranked.iloc[0]:
        return found
    return {int(ranked.index[0]): "decode", int(ranked.index[1]): "prefill"}


def _roofline(timeline: Timeline, batches: pd.DataFrame) -> Floats:
    """Share of the least times at what the card reaches; NaN where a heavy kernel's work or the context is unknown."""
    sums = _least_times(timeline, batches.index)
    prefill, decode, total = batches["prefill"], batches["decode"], batches["total"]
    each = batches["each"].fillna(prefill)
    read = batches["read"].fillna(prefill)  # where the past is not known: as if there was none
    context = total - read
    pairs = each * read - prefill * (each - 1) / 2
    decoding = decode / batches["sequences"] * context
    by_tokens, by_pairs, by_context = prefill / (prefill + decode), pairs / (pairs + decoding), read / total
    reads = np.maximum(sums["attention"] * by_pairs, sums["cache"] * by_context)
    decodes = np.maximum(sums["attention"] * (1 - by_pairs), sums["cache"] * (1 - by_context))
    reads, decodes = reads + sums["products"] * by_tokens, decodes + sums["products"] * (1 - by_tokens)
    share: pd.Series = reads / (reads + decodes)
    return share.where(context > 0).to_numpy(np.float64)


def _least_times(timeline: Timeline, steps: pd.Index) -> pd.DataFrame:
    """Per step at what the card reaches: products (math or weights), attention (its math), cache (its bytes), in ns."""
    device = timeline.device
    slower = {
        dtype: (device.peak_tflops(dtype, True) or np.nan) / reach for dtype, reach in device.achievable_tflops.items()
    }
    rows = heavy_kernels(timeline.table)
    rows = rows[rows["step"].isin(steps)]
    attends = (rows["category"] == "attention") | (rows["weight_bytes"].isna() & (rows["batch"] > 1))
    math = rows["compute_ns"] * rows["dtype"].map(slower).astype(np.float64).fillna(1.0)
    weights, cache = (rows[name] / (device.achievable_gbs or np.nan) for name in ("weight_bytes", "kv_bytes"))
    products = math.where(math >= weights, weights).mask(math.isna() | weights.isna())
    parts = pd.DataFrame({
        "products": products.where(~attends, 0.0),
        "attention": math.where(attends, 0.0),
        "cache": cache.where(attends, 0.0),
    })  # fmt: skip
    sums = parts.groupby(rows["step"]).sum().mask(parts.isna().groupby(rows["step"]).any())
    return sums[attends.groupby(rows["step"]).any()].reindex(steps)
