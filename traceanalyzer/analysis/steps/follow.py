"""Follows sequences from step to step by their number alone: which steps mix prompts with decoding; contexts.

Between two decode steps run steps that read prompts. Where every running sequence rides along (chunked prefill), the
decode step after such a run has no more sequences than the run's last step; where prompts are read apart, it has those
that decoded before and the new ones. The first kind makes every step of several sequences mixed, but the one that
starts the run with nobody decoding.

The contexts of the sequences of a step add up to all the tokens that were put in for them, so their sum needs no
sequence told from another: it is counted up as long as all prompts were read in the window, nobody ended, and whoever
is added has been read. A change that this does not explain makes it unknown until only new sequences run.

What could be wrong with it: one sequence that ends in the moment another starts is taken for the same in a run of
mixed steps; a prompt whose beginning was cached has a longer context than its tokens, so only prompts of which the
kernel says that they were read whole, or chunks whose attention grows as it does from nothing, are counted from; in a
run of mixed steps that is asked of the first prompt alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.steps.model import Bools, Floats, Ints
from traceanalyzer.trace.tables import MISSING

_FEWEST_CHUNKS = 3
"""Steps that agree on the tokens of a chunk before it is believed."""
_GROWN = 1.5
"""Attention of a prompt's second chunk as a multiple of its first's, at least: it has three times as many pairs."""


@dataclass(frozen=True)
class Sequence:
    """The steps in order, as far as they are known: by step, MISSING or NaN for unknown.

    reads: prompts are read in it; decodes: nothing else than decoding; tokens, sequences; whole: its prompts have no
    cached beginning, by their kernel; attention_ns: time in attention.
    """

    reads: Bools
    decodes: Bools
    tokens: Ints
    sequences: Ints
    whole: Bools
    attention_ns: Ints


@dataclass(frozen=True)
class Followed:
    """By step: `mixed`, the decoding sequences of mixed steps (MISSING unknown), and `context` (NaN unknown)."""

    mixed: Bools
    decoding: Ints
    context: Floats


@dataclass(frozen=True)
class _Run:
    """Steps [start, stop) that read prompts; `before` and `after` sequences decode beside it, MISSING unknown."""

    start: int
    stop: int
    before: int
    after: int


def follow(steps: Sequence) -> Followed:
    """Tell mixed steps and count contexts."""
    runs = _runs(steps)
    mixes = _mixes(steps, runs)
    mixed, decoding = np.zeros(len(steps.tokens), np.bool_), np.full(len(steps.tokens), MISSING, np.int64)
    for run in runs if mixes else []:
        here = slice(run.start, run.stop)
        mixed[here] = steps.sequences[here] > 1
        mixed[run.start] &= run.before > 0
        decoding[here] = np.where(
            mixed[here], _decoding(steps.tokens[here], steps.sequences[here], mixed[here]), MISSING
        )
    return Followed(mixed, decoding, _contexts(steps, runs, mixes))


def _runs(steps: Sequence) -> list[_Run]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], steps.reads.astype(np.int8), [0]])))
    out = []
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        before = 0 if start == 0 else int(steps.sequences[start - 1]) if steps.decodes[start - 1] else MISSING
        more = stop < len(steps.decodes) and steps.decodes[stop]
        out.append(_Run(start, stop, before, int(steps.sequences[stop]) if more else MISSING))
    return out


def _mixes(steps: Sequence, runs: list[_Run]) -> bool:
    """Whether decoding sequences ride along with prompts: some run says so, and none says the contrary."""
    found = False
    for run in runs:
        count = steps.sequences[run.start : run.stop]
        if (count == MISSING).any() or run.before == MISSING:
            continue
        last, total = int(count[-1]), int(count.sum()) + run.before
        if run.after > last and (run.before or len(count) > 1):
            return False
        first = run.start if run.before else run.start + 1
        together = steps.sequences[first : run.stop]
        if (steps.whole[first : run.stop] & (together > 1)).any():
            return False  # their kernel runs over whole prompts only
        grows = (together > 1).any() and (len(count) > 1 or last > run.before)
        if grows and total > last and (run.after != MISSING or _chunked(steps, run)):
            found = True
    return found


def _chunked(steps: Sequence, run: _Run) -> bool:
    """Whether a run that the window's end cuts reads chunks: as many tokens in each, with or without the decoding."""
    tokens, count = steps.tokens[run.start : run.stop], steps.sequences[run.start : run.stop]
    if len(tokens) < _FEWEST_CHUNKS or len(np.unique(count)) < 2:
        return False
    return len(np.unique(tokens)) == 1 or len(np.unique(tokens - count)) == 1


def _decoding(tokens: Ints, sequences: Ints, mixed: Bools) -> Ints:
    """How many sequences decode in each step of a run: what goes beyond the tokens of a chunk.

    The chunk is what the steps before anybody decodes have in common. An engine that counts the decoding tokens as
    part of its budget shows no such thing: unknown.
    """
    out = np.full(len(tokens), MISSING, np.int64)
    alone = np.unique(tokens[~mixed])
    if len(alone) != 1:
        return out
    beyond = tokens - alone[0]
    fits = mixed & (beyond >= 1) & (beyond < sequences)
    if fits.sum() >= _FEWEST_CHUNKS:
        out[fits] = beyond[fits]
    return out


class _Live:
    """The sequences that run: how many, and the sum of their contexts; both MISSING once they are not known."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0

    def lose(self) -> None:
        self.count, self.total = MISSING, MISSING

    @property
    def known(self) -> bool:
        return self.count != MISSING

    def put(self, tokens: int, count: int) -> int:
        """All of them, now `count`, took part with these tokens; the sum of their contexts."""
        self.count, self.total = count, self.total + tokens
        return self.total


def _contexts(steps: Sequence, runs: list[_Run], mixes: bool) -> Floats:
    out = np.full(len(steps.tokens), np.nan)
    live = _Live()
    by_start = {run.start: run for run in runs}
    i = 0
    while i < len(steps.tokens):
        run = by_start.get(i)
        if run is not None:
            (_together if mixes else _apart)(steps, run, live, out)
            i = run.stop
            continue
        if steps.decodes[i] and live.known and steps.sequences[i] == live.count == steps.tokens[i]:
            out[i] = live.put(int(steps.tokens[i]), live.count)
        else:
            live.lose()
        i += 1
    return out


def _apart(steps: Sequence, run: _Run, live: _Live, out: Floats) -> None:
    """Prompts that are read by themselves."""
    here = slice(run.start, run.stop)
    tokens, count = steps.tokens[here], steps.sequences[here]
    grown = _grows(tokens, steps.attention_ns[here])
    if (count == MISSING).any() or (tokens == MISSING).any():
        live.lose()
        return
    whole = steps.whole[here]
    if bool(whole.all()):
        out[here], new = tokens, int(count.sum())
    elif bool((count == 1).all()) and (whole[0] or grown):
        first = np.maximum.accumulate(np.where(whole, np.arange(len(whole)), 0))  # of each prompt
        before = np.cumsum(tokens) - tokens
        out[here], new = np.cumsum(tokens) - before[first], max(1, int(whole.sum()))
    else:
        live.lose()
        return
    if run.after not in (live.count + new if live.known else new, new, MISSING):
        if not whole.all():
            out[here] = np.nan  # a prompt with a cached beginning looks like the chunk of another one
        live.lose()
        return
    total = int(tokens.sum())
    if live.known and run.after in (live.count + new, MISSING):
        live.put(total, live.count + new)
    else:  # those before have ended
        live.count, live.total = new, total


def _together(steps: Sequence, run: _Run, live: _Live, out: Floats) -> None:
    """Chunks of prompts with the decoding sequences beside them."""
    here = slice(run.start, run.stop)
    tokens, count = steps.tokens[here], steps.sequences[here]
    alone = int((np.cumsum(count != 1) == 0).sum())
    fresh = bool(steps.whole[run.start]) or _grows(tokens[:alone], steps.attention_ns[here][:alone])
    if not fresh or (tokens == MISSING).any():
        live.lose()
    read = False
    for i in range(run.start, run.stop):
        sequences = int(steps.sequences[i])
        added = sequences - live.count
        if not live.known or added < 0 or (added == 0 and not read):
            live.lose()
            return
        out[i], read = live.put(int(steps.tokens[i]), sequences), True


def _grows(tokens: Ints, attention_ns: Ints) -> bool:
    """Whether steps of one sequence each are the chunks of one prompt that starts with them, by their attention."""
    if len(tokens) < 2 or tokens[0] != tokens[1] or attention_ns[0] <= 0:
        return False
    return bool(attention_ns[1] >= _GROWN * attention_ns[0])
