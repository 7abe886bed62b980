"""How much of a simulated run's GPU time an analysis put into the right phase, and how far its counts are off.

The truth says when each pass ran and what it was. Every nanosecond of every activity is asked for both answers; where
passes lie inside one another (a draft model's in the target's), the innermost counts. A pass that the window cut has no
right phase but its own and `other`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.pipeline import Analysis, DeviceAnalysis

Ints = npt.NDArray[np.int64]
COUNTS = ("tokens", "prefill_tokens", "decode_tokens", "sequences", "context_sum", "padded_tokens")


def share_of_time_right(analysis: Analysis | DeviceAnalysis, truth: Mapping[str, Any]) -> float:
    """The share of GPU time, 0 to 1, of which the phase is the true one.

    Args:
        analysis: of one rank's trace; of several devices the main one counts.
        truth: the document that the simulator wrote beside that trace.
    """
    table = _device(analysis).timeline.table
    start, duration = table["start_ns"].to_numpy(np.int64), table["duration_ns"].to_numpy(np.int64)
    found = table["phase"].astype(str).to_numpy()
    steps = pd.DataFrame(truth["steps"])
    owner = _innermost(steps, start)
    true = np.where(owner >= 0, steps["phase"].to_numpy(object)[owner], "other")
    whole = np.where(owner >= 0, steps["complete"].to_numpy(bool)[owner], True)
    right = (found == true) | (~whole & (found == "other"))
    total = int(duration.sum())
    return float(duration[right].sum() / total) if total else 1.0


def count_errors(analysis: Analysis | DeviceAnalysis, truth: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """For each of `COUNTS`: the share of complete true passes for which it is known, and the largest relative error.

    Passes are matched by the time of their middle; one that no found step holds counts as unknown.
    """
    found = _device(analysis).timeline.steps
    true = pd.DataFrame(truth["steps"])
    true = true[true["complete"].to_numpy(bool)]
    middle = (true["start_ns"].to_numpy(np.int64) + true["end_ns"].to_numpy(np.int64)) // 2
    owner = _innermost(found, middle)
    out: dict[str, tuple[float, float]] = {}
    for name in (one for one in COUNTS if one in true):
        given = found[name].to_numpy(np.float64)
        value = np.where(owner >= 0, given[owner] if len(given) else np.nan, np.nan)
        wanted = true[name].to_numpy(np.float64)
        known = ~np.isnan(value) & ~np.isnan(wanted)
        error = np.abs(value - wanted)[known] / np.maximum(wanted[known], 1.0)
        out[name] = (float(known.mean()) if len(known) else 1.0, float(error.max(initial=0.0)))
    return out


def _device(analysis: Analysis | DeviceAnalysis) -> DeviceAnalysis:
    return analysis.main if isinstance(analysis, Analysis) else analysis


def _innermost(steps: pd.DataFrame, time: Ints) -> Ints:
    """Row of the step that runs at each time and began last, -1 where none does."""
    owner = np.full(len(time), -1, np.int64)
    for row in np.argsort(steps["start_ns"].to_numpy(np.int64), kind="stable").tolist():
        begin, end = int(steps["start_ns"].iloc[row]), int(steps["end_ns"].iloc[row])
        owner[(time >= begin) & (time < end)] = row
    return owner
