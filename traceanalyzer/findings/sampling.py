"""What comes after the last layer: logits for positions that need none, and sorting the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.findings.answer import Answer, error, not_applicable, passed, proposal
from traceanalyzer.findings.chains import after_last
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, PhaseSubject

SAMPLES = ("sampling", "softmax", "sort_scan")
MATTERS = 0.05
LEFT_BY_FUSED = 0.2
"""Share of the sampler's time that is left when it only looks at the few best logits (method: advice)."""


def sampler(subject: PhaseSubject) -> Answer:
    """Does picking the next token take a large part of the step?"""
    rows = sampler_rows(subject)
    if not rows.any():
        return not_applicable("no_sampling")
    share = subject.share(rows)
    if share <= MATTERS:
        return passed("sampling_small", share=share)
    evidence = (Fact("sampling_share", {"share": share, "count": float(rows.sum()) / subject.count}),)
    first = rows & ~after_first(subject, rows)
    total = pd.Series(np.where(rows, subject.duration, 0.0)).groupby(subject.rows["step"]).transform("sum").to_numpy()
    new = np.where(first, LEFT_BY_FUSED * total, subject.duration)
    return proposal(subject, new, rows, evidence, 0.75, ("few_best_logits",), gone=rows & ~first)


def sampler_rows(subject: PhaseSubject) -> Bools:
    """The kernels after the last matrix product up to the last one that samples, in steps that sample."""
    tail = after_last(subject, subject.is_matrix) & subject.is_kernel
    samples = tail & subject.of_category(*SAMPLES)
    if not samples.any():
        return samples
    return tail & ~after_last(subject, samples)


def after_first(subject: PhaseSubject, rows: Bools) -> Bools:
    """Rows that come after the first of some rows in their step: all but one kernel of a sampler that is fused."""
    seen = pd.Series(rows.astype(np.int64)).groupby(subject.rows["step"]).cumsum().to_numpy()
    later: Bools = seen > rows.astype(np.int64)
    return later


def all_positions(subject: PhaseSubject) -> Answer:
    """Does a prefill compute logits for every position although only the last one's are sampled?"""
    step, m = subject.rows["step"].to_numpy(), subject.column("m")
    weights = np.flatnonzero(subject.is_weight)
    last = weights[np.append(step[weights][1:] != step[weights][:-1], True)] if len(weights) else weights
    sequences, tokens = subject.summary.sequences_mean, subject.summary.tokens_mean
    if not sequences or not tokens:
        return error("tokens_unknown")
    n = subject.column("n")
    layers = subject.is_weight.copy()
    layers[last] = False
    head = last[n[last] > 1.2 * np.max(n[layers], initial=0.0)]
    if not len(head) or tokens <= sequences:
        return not_applicable("no_lm_head")
    rows = np.zeros(len(subject.rows), np.bool_)
    rows[head] = True
    if float(m[head].mean()) < 0.9 * tokens:
        return passed("logits_of_last_position", rows=float(m[head].mean()))
    memory, compute = subject.column("memory_ns"), subject.column("compute_ns")
    weight = memory * subject.column("weight_bytes") / subject.column("bytes")
    ideal = np.maximum(compute, memory)
    fewer = np.maximum(compute * sequences / m, weight)
    new = subject.duration * np.divide(fewer, ideal, out=np.ones_like(ideal), where=ideal > 0)
    evidence = (Fact("logits_for_all", {"rows": float(m[head].mean()), "sequences": sequences}),)
    return proposal(subject, new, rows, evidence, 0.8, ("only_last_sampled",))
