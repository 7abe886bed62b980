"""The kernels of each step in order, equal sequences only once.

A kernel carries a part where its class says that it belongs to a layer: products, attention, norms, rotary embedding,
cache writes, activations, routing, communication. What is left (copies, sums, what a compiler fused) may stand anywhere
and decides nothing.

What could be wrong: kernels are ordered by their start on the device. Where a layer runs on two streams at once the
order differs from step to step; such a step fits no model and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.kernels import HELPER_ROLES
from traceanalyzer.analysis.replay.recorded import Recorded
from traceanalyzer.analysis.work.columns import Ints, distinct

PRODUCT, EXPERTS, ATTENTION = "product", "experts", "attention"
NORM, ROPE, KV_WRITE, ACTIVATION, ROUTING = "norm", "rope", "kv_write", "activation", "routing"
COMBINE, SPLIT, COMM, QUANTISE, EMBEDDING = "combine", "split", "comm", "quantise", "embedding"
HEAVY = (PRODUCT, EXPERTS)
"""What multiplies by weights."""

_PARTS: Mapping[str, tuple[str, str]] = {
    "gemm": (PRODUCT, SPLIT), "gemv": (PRODUCT, SPLIT), "moe": (EXPERTS, ROUTING), "attention": (ATTENTION, COMBINE),
    "norm": (NORM, NORM), "rope": (ROPE, ROPE), "kv_cache": (KV_WRITE, KV_WRITE), "comm": (COMM, COMM),
    "activation": (ACTIVATION, ACTIVATION), "quant": (QUANTISE, QUANTISE), "embedding": (EMBEDDING, EMBEDDING),
}  # fmt: skip
"""The part that a category's kernels play, and that of its helpers."""
GRID = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


@dataclass(frozen=True)
class Carriers:
    """The kernels of a sequence that carry a part: which, their name codes, a number per grid, their places in it."""

    parts: tuple[str, ...]
    names: tuple[int, ...]
    grids: tuple[int, ...]
    at: Ints


@dataclass(frozen=True)
class Alike:
    """Steps of one sequence of kernels. `rows`: activity rows, a line per step, a column per kernel."""

    steps: Ints
    rows: Ints
    carriers: Carriers


def sequences(recorded: Recorded, wanted: Ints) -> Iterator[Alike]:
    """The steps `wanted` (their numbers), by their sequence of kernels."""
    trace, table, work, step = recorded.trace, recorded.activity.table, recorded.work, recorded.activity_step
    inside = recorded.in_steps & np.isin(step, wanted) & (table["kernel"].to_numpy() >= 0)
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((table["start_ns"].to_numpy()[rows], step[rows]))]
    kernel = table["kernel"].to_numpy(np.int64)[rows]
    grid, _ = distinct([trace.kernels[axis].to_numpy(np.int64)[kernel] for axis in GRID])
    name = table["name"].to_numpy(np.int64)[rows]
    code = name * (int(grid.max(initial=0)) + 1) + grid
    numbers, starts = np.unique(step[rows], return_index=True)
    edges = np.append(starts, len(rows))
    groups: dict[bytes, list[int]] = {}
    for index in range(len(numbers)):
        groups.setdefault(code[edges[index] : edges[index + 1]].tobytes(), []).append(index)
    for members in groups.values():
        first = slice(edges[members[0]], edges[members[0] + 1])
        lines = np.stack([rows[edges[i] : edges[i + 1]] for i in members])
        yield Alike(numbers[members].astype(np.int64), lines, _carriers(work, lines[0], name[first], grid[first]))


def _carriers(work: pd.DataFrame, rows: Ints, name: Ints, grid: Ints) -> Carriers:
    categories = work["category"].to_numpy(object)[rows]
    helping = np.isin(work["role"].to_numpy(object)[rows].astype(str), sorted(HELPER_ROLES))
    parts = [
        _PARTS[category][int(helps)] if category in _PARTS else ""
        for category, helps in zip(categories, helping, strict=True)
    ]
    at = np.array([i for i, part in enumerate(parts) if part], np.int64)
    return Carriers(tuple(parts[i] for i in at), tuple(name[at].tolist()), tuple(grid[at].tolist()), at)
