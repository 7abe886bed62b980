"""What one request sees: time to the first token, time per output token, and how the work divides.

From a trace of steps only: TTFT is the prefill's time on the device (no queueing, no network), TPOT the time from one
step that gives a sequence a token to the next one that does: decode steps, and mixed steps that decode too. A prefill
in between that lets others join belongs to that time, for the running sequences wait for it; one that starts a new
batch does not. Where groups of sequences take turns (`turns`), the next step is the next one of the same group, and
steps whose group is not told apart give no time. Each step's time counts once per sequence that got a token at both
ends, so that percentiles are over tokens.

A window that holds one whole prefill followed by whole decode steps of the same sequences is one request, or one batch
of equal requests: its lengths are those of the window, which may end before the request does. In any other window the
lengths are unknown; TPOT and the work of a decode step as a fraction of a whole prefill's, per sequence, still stand.
Several windows hold one request only where contexts show that no step was missed between them, and no time per token
reaches over the time between two windows.

Requests are counted by their prefills: the sequences of whole prefill steps, each of which began with nothing cached.

What could be wrong: in a batch that some leave while others join, those that stay are taken to be as many as possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.floor import heavy_kernels
from traceanalyzer.analysis.intervals import covered
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.turns import Ints, successors, turns
from traceanalyzer.trace.tables import MISSING

TOKEN_PHASES = ("prefill", "decode", "mixed")


@dataclass(frozen=True)
class RequestView:
    """Lengths in tokens per sequence within the window, times in nanoseconds, None for unknown."""

    input_tokens: int | None
    output_tokens: int | None
    ttft_ns: float | None
    tpot_ns_p50: float | None
    tpot_ns_p99: float | None
    decode_over_prefill_flops: float | None
    requests: int | None


def view(timeline: Timeline) -> RequestView | None:
    """The request's view, or None where the trace has no complete step that reads or puts out tokens."""
    passes = timeline.steps[(timeline.steps["parent_step"] < 0) & timeline.steps["phase"].isin(TOKEN_PHASES)]
    if not passes["complete"].any():
        return None
    times, tokens = _token_times(timeline, passes)
    p50, p99 = (_percentile(times, tokens, q) for q in (50, 99))
    requests = _requests(passes)
    if not _is_one_batch(passes) or _misses_steps(timeline, passes):
        return RequestView(None, None, None, p50, p99, _work_ratio(timeline, passes), requests)
    prefill, decode = passes.iloc[0], passes.iloc[1:]
    return RequestView(
        input_tokens=int(prefill["prefill_tokens"] // prefill["sequences"]),
        output_tokens=len(decode) + 1,
        ttft_ns=float(prefill["duration_ns"]),
        tpot_ns_p50=p50,
        tpot_ns_p99=p99,
        decode_over_prefill_flops=_work_ratio(timeline, passes),
        requests=requests,
    )


def _requests(passes: pd.DataFrame) -> int | None:
    """Sequences whose prompts were read; None where a prefill may be a part of one, or is not recorded whole."""
    prefill = passes[passes["phase"] == "prefill"]
    known = prefill["complete"].all() and prefill["sequences"].notna().all() and prefill["context_sum"].notna().all()
    if not len(prefill) or not known or (passes["phase"] == "mixed").any():
        return None
    whole = (prefill["context_sum"] == prefill["prefill_tokens"]).all()
    return int(prefill["sequences"].sum()) if whole else None


def _misses_steps(timeline: Timeline, passes: pd.DataFrame) -> bool:
    """Whether steps may have run between two windows: contexts that do not go on, or are not known, there."""
    start = passes["start_ns"].to_numpy(np.int64)
    between = covered(timeline.between, start[:-1], start[1:]) > 0
    context, grown = passes["context_sum"].to_numpy(np.float64), passes["sequences"].to_numpy(np.float64)
    goes_on = context[1:] == context[:-1] + grown[1:]
    return bool((between & ~goes_on).any())


def _is_one_batch(passes: pd.DataFrame) -> bool:
    """One prefill first, then only decode steps of as many sequences, one token each, all of them whole."""
    phases = passes["phase"].tolist()
    if len(phases) < 2 or phases[0] != "prefill" or set(phases[1:]) != {"decode"} or not passes["complete"].all():
        return False
    counts, decode = passes["sequences"], passes.iloc[1:]
    same = bool(counts.notna().all()) and counts.nunique() == 1
    single_token = bool((decode["tokens"] == decode["sequences"]).all())
    first = passes["prefill_tokens"].iloc[0]
    return same and single_token and bool(pd.notna(first)) and first % counts.iloc[0] == 0


def _token_times(timeline: Timeline, passes: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Time from each complete step that gives tokens to the next one of its sequences, in ns, and of how many tokens.

    Where the tokens of one are not known, each time counts once.
    """
    decodes = (passes["phase"] == "decode").to_numpy() & passes["complete"].to_numpy(bool)
    before, after = _in_turns(passes, decodes)
    if not len(before):
        before, after = _neighbours(passes, decodes)
    start = passes["start_ns"].to_numpy(np.int64)
    within = covered(timeline.between, start[before], start[after]) == 0
    before, after = before[within], after[within]
    held = timeline.unrecorded_between(start[before], start[after])
    times: np.ndarray = (start[after] - start[before] - held).astype(np.float64)
    given = _given(passes, decodes)
    tokens = np.minimum(given[before], given[after])
    return times, np.ones(len(times)) if np.isnan(tokens).any() else tokens


def _percentile(values: np.ndarray, counts: np.ndarray, percent: float) -> float | None:
    """The percentile of values that each stand for so many, with linear interpolation; None where they stand for none.

    Counted, not repeated: a forged label says more tokens than memory holds.
    """
    order = np.argsort(values, kind="stable")
    ordered, upto = values[order], np.cumsum(counts[order])
    if not len(upto) or upto[-1] < 1:
        return None
    place = (upto[-1] - 1) * (percent / 100)
    at = np.searchsorted(upto, (np.floor(place), np.ceil(place)), side="right")
    low, high = ordered[np.minimum(at, len(ordered) - 1)].tolist()
    part = place % 1
    return float(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))


def _given(passes: pd.DataFrame, decodes: np.ndarray) -> np.ndarray:
    """The sequences that each pass gives a token; NaN where that is not known."""
    mixed: np.ndarray = passes["decode_sequences"].to_numpy(np.float64)
    return np.where(decodes, passes["sequences"].to_numpy(np.float64), mixed)


def _in_turns(passes: pd.DataFrame, decodes: np.ndarray) -> tuple[Ints, Ints]:
    """Pairs of decode steps that go on with each other, where groups of sequences take turns; none where none do."""
    (here,) = np.nonzero(decodes)
    steps = passes.iloc[here]
    found = turns(steps)
    if found is None or found.groups < 2:
        return here[:0], here[:0]
    after = successors(steps)
    linked = after != MISSING
    return here[linked], here[after[linked]]


def _neighbours(passes: pd.DataFrame, decodes: np.ndarray) -> tuple[Ints, Ints]:
    """Pairs of neighbouring steps that give tokens, where the later one can have all sequences that go on."""
    given = _given(passes, decodes)
    mixed = (passes["phase"] == "mixed").to_numpy() & passes["complete"].to_numpy(bool) & (given > 0)
    giving = decodes | mixed
    (here,) = np.nonzero(giving)
    before, after = here[:-1], here[1:]
    # Only prefills may stand between, and the batch must have grown by what they admitted.
    sequences = passes["sequences"].to_numpy(np.float64)
    admitted = np.where(passes["phase"] == "prefill", np.nan_to_num(sequences, nan=np.inf), np.inf)
    admitted[giving] = 0.0
    total = np.concatenate(([0.0], np.cumsum(np.where(np.isinf(admitted), 0.0, admitted))))
    blocked = np.concatenate(([0], np.cumsum(np.isinf(admitted))))
    joined = total[after] - total[before + 1]
    clear = blocked[after] == blocked[before + 1]
    goes_on = (after == before + 1) | (clear & (sequences[after] >= given[before] + joined))
    return before[goes_on], after[goes_on]


def _work_ratio(timeline: Timeline, passes: pd.DataFrame) -> float | None:
    """FLOPs of a decode step over those of a whole prefill, both per sequence and the median over complete steps.

    Unknown without both, with an unknown heavy kernel in any of them, where the sequences are not known, and where a
    prefill may be no whole one: it has a past (a chunk, a cached prefix), or chunks of others ride on mixed steps.
    """
    whole = passes[passes["complete"].astype(bool)]
    prefill, decode = (whole[whole["phase"] == phase] for phase in ("prefill", "decode"))
    has_past = (prefill["context_sum"] > prefill["prefill_tokens"]).any()
    if not len(prefill) or not len(decode) or has_past or (passes["phase"] == "mixed").any():
        return None
    rows = heavy_kernels(timeline.table)
    flops = rows.groupby("step")["flops"].sum().mask(rows["flops"].isna().groupby(rows["step"]).any())
    each = flops.reindex(whole.index) / whole["sequences"]
    read, step = each[prefill.index], each[decode.index]
    if each.isna().any() or not read.median() > 0:
        return None
    return float(step.median() / read.median())
