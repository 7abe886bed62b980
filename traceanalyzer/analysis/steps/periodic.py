"""The last resort: a forward pass is a run of equal layers, and something else stands between two passes.

The layer period is the smallest lag at which the kernel sequence repeats. Its autocorrelation is estimated by FFT over
random signs drawn per kernel name (O(n log n)), then the shortest good lags are compared exactly. Where the repetition
breaks off (lm_head, sampling, the next input), one pass ends.

What could be wrong with it: a model whose layers all differ has no period; one kernel repeated many times (a copy loop)
has period 1 and is refused; passes with nothing between them cannot be told apart and stay one piece.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.steps.model import Ints
from traceanalyzer.trace.tables import MISSING

MIN_LAYERS = 3
"""A sequence must repeat this often before it counts as layers."""
_MIN_PERIOD, _MAX_PERIOD, _MIN_ROWS = 3, 4000, 24
_CANDIDATES, _SIGNS, _NOISE = 64, 8, 0.15
_ENOUGH = 0.55
"""The share of kernels that repeat at the layer period: the rest is what stands between passes and at the edges."""


def layer_period(names: npt.NDArray[np.int64]) -> int:
    """The smallest lag at which most of a kernel sequence repeats, or 0.

    Args:
        names: name codes in order of execution.
    """
    n = len(names)
    limit = min(_MAX_PERIOD, n // MIN_LAYERS)
    if n < _MIN_ROWS or limit < _MIN_PERIOD:
        return 0
    score = _autocorrelation(names)[: limit + 1]
    score[:_MIN_PERIOD] = -np.inf
    for lag in np.flatnonzero(score >= _ENOUGH - _NOISE)[:_CANDIDATES].tolist():
        repeats = float(np.mean(names[:-lag] == names[lag:])) >= _ENOUGH
        if repeats and len(np.unique(names[: 4 * lag])) > 2:
            return int(lag)
    return 0


def _autocorrelation(names: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """An estimate of the share of equal kernels at each lag: random signs per name are equal only with themselves."""
    _, code = np.unique(names, return_inverse=True)
    n = len(code)
    size = 1 << (2 * n - 1).bit_length()
    random = np.random.default_rng(0)
    total = np.zeros(n)
    for _ in range(_SIGNS):
        sign = random.choice((-1.0, 1.0), int(code.max()) + 1)[code]
        spectrum = np.fft.rfft(sign, size)
        total += np.fft.irfft(spectrum * np.conj(spectrum), size)[:n]
    return total / (_SIGNS * np.arange(n, 0, -1))


def breaks(rows: pd.DataFrame) -> Ints:
    """Host times at which a new forward pass starts, from the kernel sequence alone; empty where none can be told.

    Args:
        rows: from `tokens.step_rows`, in order of submission.
    """
    known = rows[(rows["thread"] != MISSING) & ~rows["category"].isin(("memcpy", "memset"))]
    names, times = known["name"].to_numpy(np.int64), known["time_ns"].to_numpy(np.int64)
    period = layer_period(names)
    if not period:
        return np.empty(0, np.int64)
    equal = np.append(names[:-period] == names[period:], np.zeros(period, np.bool_))
    runs = _runs(equal, max(2, period // 4))
    long = [(start, stop) for start, stop in runs if stop - start >= period * (MIN_LAYERS - 1)]
    if len(long) < 2:
        return np.empty(0, np.int64)
    cuts = [_cut(known, end + period, start) for (_, end), (start, _) in itertools.pairwise(long)]
    starts: Ints = times[np.array([0, *cuts])]
    return starts


def _runs(equal: npt.NDArray[np.bool_], tolerance: int) -> list[tuple[int, int]]:
    """Maximal half-open runs of True, joined over gaps of at most `tolerance`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8)))
    joined: list[tuple[int, int]] = []
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if joined and start - joined[-1][1] <= tolerance:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _cut(rows: pd.DataFrame, end: int, start: int) -> int:
    """Where in the gap [end, start) between two runs of layers the next pass begins.

    After the last sampling kernel; without one, after the longest pause of the device.
    """
    if start <= end:
        return start
    gap = rows.iloc[end:start]
    sampling = np.flatnonzero(gap["category"].isin(("sampling", "softmax", "sort_scan")).to_numpy())
    if len(sampling):
        return end + int(sampling[-1]) + 1
    stops = (rows["start_ns"] + rows["duration_ns"]).to_numpy()
    begins = rows["start_ns"].to_numpy()
    pause = begins[end : start + 1] - stops[end - 1 : start]
    return end + int(np.argmax(pause))
