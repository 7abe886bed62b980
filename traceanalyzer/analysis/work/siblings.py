"""Work for kernels that lost their op: from the same kernel elsewhere in the trace whose op is recorded.

Kernels launched before the window opened, or replayed from a graph, have no op. The same kernel (name, grid, block) may
have one elsewhere. That alone is ambiguous: two products that differ in K only share name and grid. So a kernel takes a
sibling's work only where both stand in the same place of the same sequence: the kernels before and after them on their
stream are the same too. Every sibling in that place must have the same work, and the kernel must take about as long as
they do. The longest context that any sibling shares decides, from eight kernels to either side down to two; at the
edges of a recording, one side of six. Where siblings disagree, the work stays unknown.

Attention over a cache and concatenation (but along the last dimension) grow with the context while name and grid may
not change: there a sibling must also belong to the same pass through the model, with no lookup or sampling in between.

What could be wrong: a persistent kernel's grid tells nothing of its shape, so another batch size that leaves all
neighbours' grids alone looks the same; the durations are then the only guard.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.kernels import MATRIX_CATEGORIES
from traceanalyzer.analysis.shapes import integer, signature
from traceanalyzer.analysis.work.columns import Bools, Floats, Ints
from traceanalyzer.analysis.work.doers import Names
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.catalog import op_models
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

_CONTEXTS = ((8, 8), (4, 4), (2, 2), (0, 6), (6, 0))
"""How many kernels before and after must be the same, the most telling context first."""
_SLOWER, _JITTER_NS = 1.5, 2_000
"""A kernel's time may differ from its siblings' by this factor and this much: clocks and neighbours vary, K more so."""
_WITHOUT = frozenset({"comm", "memcpy", "memset"})
_BETWEEN_PASSES = frozenset({"sampling", "embedding"})
_MIXER = np.uint64(0x9E3779B97F4A7C15)
_AVALANCHE = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

Hashes = npt.NDArray[np.uint64]


def from_siblings(
    trace: Trace, activity: Activity, names: Names, works: Sequence[OpWork], done: Ints, share: Floats
) -> Ints:
    """For each row without an op the work its siblings have, MISSING where there is none that is beyond doubt.

    Args:
        trace, activity: what was read, and what ran.
        names: what the kernels' names say.
        works: the distinct works.
        done: per row the index of the work it did, MISSING for none.
        share: per row its share of that work.
    """
    given = np.full(len(done), MISSING, np.int64)
    table = activity.table
    kernel = (table["kind"].to_numpy() == KERNEL) & ~names.has_category(_WITHOUT)
    owned = table["op"].to_numpy() >= 0
    if activity.on_cpu or not (kernel & owned).any():
        return given
    token, has_grid = _tokens(trace, table)
    lost = np.isin(token, token[kernel & owned]) & kernel & ~owned & has_grid
    if not lost.any():
        return given
    work = np.where(share == 1.0, done, MISSING)  # of a work that several kernels share, no part is told
    order = np.lexsort((table["start_ns"].to_numpy(), table["stream"].to_numpy(), table["device"].to_numpy()))
    mixed = _mixed(token.astype(np.uint64))
    growing = np.isin(token, token[_grows(trace, table["op"].to_numpy(np.int64), work, works)])
    own = np.where(growing, _mixed(_passes(names).astype(np.uint64)), np.uint64(0))
    segment = table.groupby(["device", "stream"], sort=False).ngroup().to_numpy().astype(np.int64)[order]
    duration = table["duration_ns"].to_numpy(np.float64)
    back = np.argsort(order)
    asking = lost.copy()
    for before, after in _CONTEXTS:
        if not asking.any():
            break
        place = _contexts(mixed[order], segment, before, after)[back] + own
        cut_off = _near_edge(segment, before == 0)[back] if not before or not after else asking
        rows, value = _agreed(place, kernel & owned, asking & cut_off, work, duration)
        given[rows], asking[rows] = value, False
    return given


def _tokens(trace: Trace, table: pd.DataFrame) -> tuple[Ints, Bools]:
    """A number per (name, grid, block), and whether the grid was recorded."""
    kernels = trace.kernels.iloc[table["kernel"].to_numpy(np.int64)]
    token = table["name"].to_numpy(np.int64)
    for axis in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"):
        size = kernels[axis].to_numpy(np.int64)
        numbered, _ = pd.factorize(token * (int(size.max(initial=0)) + 2) + size + 1)
        token = numbered.astype(np.int64)
    return token, (kernels["grid_x"].to_numpy() > 0).astype(np.bool_)


def _grows(trace: Trace, op: Ints, work: Ints, works: Sequence[OpWork]) -> Bools:
    """Which rows' work grows with the context without showing in the grid."""
    past = np.array([*map(_sees_past, works), False], np.bool_)[work]
    joined = np.array([*(w.untyped_elements is not None for w in works), False], np.bool_)[work]
    rows = np.flatnonzero(joined)
    recorded = trace.ops[["name", "dims", "concrete"]].to_numpy(np.int64)[op[rows]]
    calls, place = np.unique(recorded, axis=0, return_inverse=True)
    sideways = [_joins_last(*(trace.text(code) for code in call)) for call in calls.tolist()]
    joined[rows] = ~np.array(sideways, np.bool_)[place.ravel()]
    grows: Bools = past | joined
    return grows


def _sees_past(work: OpWork) -> bool:
    """Whether it is attention over more keys than queries, or one of the two products of attention without fusion."""
    if work.category in MATRIX_CATEGORIES and work.weight_bytes is None:
        return (work.batch or 1) > 1 and work.m not in (work.n, work.k)
    return work.kv_len is not None and work.kv_len != work.q_len


def _joins_last(name: str, dims: str, concrete: str) -> bool:
    """Whether a concatenation is along the last dimension (halves of a head), so not along the context."""
    call = signature(dims, "", concrete, "")
    model = op_models.find(name, len(call.dims))
    shapes = call.tensors(model.at["list"]) if model and "list" in model.at else None
    axis = integer(call.value(model.at["list"] + 1)) if model and shapes else None
    return shapes is not None and axis in (-1, max(map(len, shapes)) - 1)


def _passes(names: Names) -> Ints:
    """Numbers the passes through the model, in order of time: a lookup or sampling starts the next."""
    return np.cumsum(names.has_category(_BETWEEN_PASSES))


def _mixed(values: Hashes) -> Hashes:
    """Numbers spread over 64 bits (the finaliser of SplitMix64), so that sums of them do not collide."""
    mixed = (values + np.uint64(1)) * _MIXER
    for shift, factor in zip((30, 27), _AVALANCHE, strict=True):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
    return mixed ^ (mixed >> np.uint64(31))


def _contexts(token: Hashes, segment: Ints, before: int, after: int) -> Hashes:
    """A hash of each row's own token and its neighbours'; beyond its segment's ends stands nothing."""
    found = token.copy()
    for step in (*range(-before, 0), *range(1, after + 1)):
        at = np.arange(len(token)) + step
        inside = (at >= 0) & (at < len(token))
        at = np.clip(at, 0, len(token) - 1)
        neighbour = np.where(inside & (segment[at] == segment), token[at], np.uint64(0))
        found += _mixed(neighbour + np.uint64(step % 64))
    return found


def _near_edge(segment: Ints, at_start: bool) -> Bools:
    """Which rows have fewer than two neighbours on that side of their segment."""
    near = np.ones(len(segment), np.bool_)
    if at_start:
        near[2:] = segment[2:] != segment[:-2]
    else:
        near[:-2] = segment[:-2] != segment[2:]
    return near


def _agreed(place: Hashes, donors: Bools, asking: Bools, work: Ints, duration: Floats) -> tuple[Ints, Ints]:
    """The asking rows that share their place with a donor, and the work that all donors there agree on (or MISSING)."""
    number, _ = pd.factorize(place)
    count = int(number.max(initial=-1)) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, MISSING - 1)
    fastest, slowest = np.full(count, np.inf), np.zeros(count)
    at = number[donors]
    np.minimum.at(low, at, work[donors])
    np.maximum.at(high, at, work[donors])
    np.minimum.at(fastest, at, duration[donors])
    np.maximum.at(slowest, at, duration[donors])
    rows = np.flatnonzero(asking & (high[number] >= MISSING))
    at, time = number[rows], duration[rows]
    usual = (time >= fastest[at] / _SLOWER - _JITTER_NS) & (time <= slowest[at] * _SLOWER + _JITTER_NS)
    return rows, np.where((low[at] == high[at]) & usual, low[at], MISSING)
