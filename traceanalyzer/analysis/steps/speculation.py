"""Speculative decoding that no label names: a second, smaller model's passes between those of the first.

    drafts   passes of fewer layers, as many after each pass of the larger model, every time
    checks   passes of the larger model over the same small number of tokens of every sequence, several times in a row

What could be wrong with it: an early-exit model whose steps alternate by design would pass for a draft and its target;
batches of equal, very short prompts in a row look like checks unless their logits are fewer than their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.sequence import SPECULATION
from traceanalyzer.trace.tables import MISSING

_REGULAR = 0.75
"""Share of the larger model's passes that as many drafts must follow."""
_ALWAYS_DRAFT = 0.25
"""A model with at most this share of the larger one's layers needs no checks beside it to be its draft."""
_FEWEST = 3
"""Checks of the same length in a row before they count as such."""


@dataclass(frozen=True)
class Speculation:
    """By step in order: whether it is a draft model's, and the tokens per sequence that a check has, else MISSING."""

    draft: Bools
    checked: Ints


def read(layers: Ints, tokens: Ints, sequences: Ints, logits: Ints) -> Speculation:
    """Find drafts and checks.

    Args:
        layers: that each step ran, in order.
        tokens, sequences, logits: of each step, MISSING where unknown.
    """
    each = np.where((sequences > 0) & (tokens > 0), tokens // np.maximum(sequences, 1), MISSING)
    even = (each * sequences == tokens) & (each > 1) & (each <= SPECULATION + 1)
    even &= (logits == MISSING) | (logits >= tokens)
    draft = _drafts(layers, np.where(even, each, MISSING))
    checked = np.full(len(layers), MISSING, np.int64)
    target = np.flatnonzero(~draft)
    lengths = np.where(even, each, MISSING)[target]
    edges = np.concatenate([[0], np.flatnonzero(np.diff(lengths)) + 1, [len(lengths)]])
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if start < stop and lengths[start] != MISSING and (stop - start >= _FEWEST or draft.any()):
            checked[target[start:stop]] = lengths[start]
    return Speculation(draft, checked)


def _drafts(layers: Ints, checked: Ints) -> Bools:
    none = np.zeros(len(layers), np.bool_)
    counts, times = np.unique(layers[layers > 0], return_counts=True)
    often = counts[times >= 2]
    if len(often) < 2:
        return none
    top = often[-1]
    small = counts[:-1][np.argmax(times[:-1])] if counts[-1] == top else MISSING
    target, few = np.flatnonzero(layers == top), np.flatnonzero(layers == small)
    followers = np.diff(np.searchsorted(few, np.append(target, len(layers))))
    usual = int(np.bincount(followers[:-1]).argmax()) if len(followers) > 1 else 0
    regular = usual > 0 and float((followers[:-1] == usual).mean()) >= _REGULAR
    checks = float((checked[target[1:]] != MISSING).mean()) >= 0.5
    if not regular or few[0] < target[0] or not (checks or small <= _ALWAYS_DRAFT * top):
        return none
    found: Bools = layers == small
    return found
