"""How many generation streams take turns: decode steps that each serve a part of what could be one batch.

A stream's context grows by one token per sequence and step. Steps are put in chains: a step goes on with the chain
whose context it continues. Chains that overlap in time are streams that take turns; requests one after the other are
one.

What could be wrong: two streams whose contexts differ by exactly what one of them grows in the meantime can swap, which
does not change their number; a request that ends and a new one that begins in the same window may overlap by a step.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

FEWEST_STEPS = 4


def streams(steps: pd.DataFrame) -> int | None:
    """The most streams that took turns at one time.

    Args:
        steps: complete decode steps in start order.

    Returns:
        None where contexts are unknown, steps serve different numbers of sequences, or there are too few steps.
    """
    count = steps["sequences"]
    if len(steps) < FEWEST_STEPS or count.isna().any() or count.nunique() != 1 or steps["context_sum"].isna().any():
        return None
    if not (steps["tokens"] == count).all():
        return None
    grows = int(count.iloc[0])
    open_chains: dict[int, list[int]] = {}
    first: list[int] = []
    last: list[int] = []
    for place, context in enumerate(steps["context_sum"].astype(np.int64).tolist()):
        waiting = open_chains.get(context - grows)
        if waiting:
            chain = waiting.pop(0)
            last[chain] = place
        else:
            chain = len(first)
            first.append(place)
            last.append(place)
        open_chains.setdefault(context, []).append(chain)
    begins, ends = np.array(first), np.array(last)
    long = ends > begins
    if not long.any():
        return None
    at_once = [int(((begins <= place) & (place <= ends))[long].sum()) for place in begins[long]]
    return max(at_once)
