"""Which attention calls look through a sliding window, how wide it is, and what they see through it.

An op may record its window; a kernel's name may say that there is one; the model says which of its layers have one, and
the attention calls of a step are its layers in order. A step whose calls are not as many as the layers, or whose names
say otherwise than the model, takes nothing from it.

With a window W a query sees itself and W - 1 keys before it, so of a sequence of q queries and k keys the pairs are
those of `work.attention`, and min(k, W - 1 + q) keys are read. What could be wrong: sequences of one step are taken to
be equally long; that is exact for one sequence only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from traceanalyzer.analysis.work.attention import Mask, keys_seen, pairs_kept
from traceanalyzer.analysis.work.columns import Bools, Floats, Ints

FULL = 0.0
"""The width of a layer without a window."""


def by_layer(order: pd.DataFrame, windows: Sequence[int | None], windowed: Bools, plain: Bools) -> Floats:
    """The window of each attention call by the place of its layer in the step; NaN where the model does not tell.

    Args:
        order: columns step, op, start of every attention call (kernels of one op are one call).
        windows: per layer its window, None without one.
        windowed, plain: whose kernels' names say that there is a window, and that there is none.
    """
    calls = order.drop_duplicates("op").sort_values(["step", "start"], kind="stable")
    groups = calls.groupby("step")
    place, whole = groups.cumcount().to_numpy(), (groups["op"].transform("size") == len(windows)).to_numpy()
    width = np.array([FULL if one is None else one for one in windows] or [FULL], np.float64)
    told = np.where(whole, width[np.where(whole, place, 0)], np.nan)
    found: Floats = np.array(pd.Series(told, index=calls["op"].to_numpy()).loc[order["op"]], np.float64)
    against = (windowed & (found == FULL)) | (plain & (found > FULL))
    found[order["step"].isin(order.loc[against, "step"]).to_numpy()] = np.nan
    return found


def seen(step: pd.DataFrame, number: Ints, width: Floats) -> tuple[Floats, Floats, Bools]:
    """(pairs, keys read, whether exact) of calls through windows; NaN where the sequences are not told.

    Args:
        step: the facts of each call's step.
        number: which step that is.
        width: the window of each call; NaN for one without.
    """
    both = divided(step, number, width).sum(axis=1)
    sequences = step["prefill_sequences"].to_numpy(np.float64) + step["decode_sequences"].to_numpy(np.float64)
    return both[:, 0], both[:, 1], sequences == 1


def divided(step: pd.DataFrame, number: Ints, width: Floats) -> Floats:
    """Pairs and keys of each call's prompts, and of its decodes; NaN where they are not told or the width is NaN.

    Args:
        step, number: as of `seen`.
        width: the window of each call, FULL for none.

    Returns:
        Shape (calls, 2, 2): prompts and decodes, pairs and keys.
    """
    names = ["prefill_tokens", "prefill_sequences", "decode_tokens", "decode_sequences", "context_sum"]
    widths, sizes = pd.factorize(width)
    keys, _ = pd.factorize(number * (len(sizes) + 1) + widths)
    first = np.flatnonzero(~pd.Series(keys).duplicated().to_numpy())
    facts = np.column_stack([*(step[name].to_numpy(np.float64)[first] for name in (*names, "query_context_sum")),
                             width[first]])  # fmt: skip
    found = np.array([_of_step(*row) for row in np.nan_to_num(facts, nan=-1.0).tolist()], np.float64)
    return found.reshape(-1, 2, 2)[keys]


def _of_step(
    prompt_tokens: float, prompts: float, decode_tokens: float, decodes: float, keys: float, product: float,
    width: float,
) -> tuple[float, ...]:  # fmt: skip
    """Pairs and keys of a step's prompts (or chunks), all alike, and of its decodes, all alike."""
    unknown = (np.nan,) * 4
    if keys <= 0 or width < 0 or min(prompts, decodes, prompt_tokens, decode_tokens) < 0:
        return unknown
    mask = Mask(bottom_right=True, left=int(width) - 1 if width > FULL else None, right=0)
    own = keys if prompts else 0.0
    if prompts and decodes:
        own = _keys_of_prompts(prompt_tokens / prompts, decode_tokens / decodes, keys, product)
        if not 0 < own < keys:
            return unknown
    found: list[float] = []
    for count, tokens, context in ((prompts, prompt_tokens, own), (decodes, decode_tokens, keys - own)):
        each = (tokens / count, context / count, mask) if count else None
        found += [count * pairs_kept(*each), count * keys_seen(*each)] if each else [0.0, 0.0]
    return tuple(found)


def _keys_of_prompts(prompt: float, decode: float, keys: float, product: float) -> float:
    """The part of all keys that is the prompts': q_p K_p + q_d K_d is the sum of products, K_p + K_d that of keys."""
    return (product - decode * keys) / (prompt - decode) if prompt > decode else np.nan
