"""Puts the step table together: one row per step and device, in start order, and the way back from activity to steps.

What could be wrong with it: nothing is decided here; a step whose kernels ran on two devices becomes two rows with the
same facts, so tokens must be read per device, never summed over devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps.model import FACTS, Bools, Ints
from traceanalyzer.analysis.steps.phase import Verdict
from traceanalyzer.trace.tables import MISSING

_COLUMNS: Mapping[str, object] = {
    "step": np.int32, "device": np.int32, "phase": object, "confidence": np.float64, "evidence": object,
    "start_ns": np.int64, "end_ns": np.int64, **dict.fromkeys(FACTS, np.float64),
    "parent_step": np.int32, "complete": np.bool_,
}  # fmt: skip


def empty_table() -> pd.DataFrame:
    """A step table without rows."""
    return pd.DataFrame({name: np.empty(0, dtype) for name, dtype in _COLUMNS.items()})


def build_table(
    activity: Activity,
    group: Ints,
    verdicts: Sequence[Verdict],
    facts: Mapping[str, npt.NDArray[np.float64]],
    parents: Sequence[int],
    complete: Bools,
) -> tuple[pd.DataFrame, npt.NDArray[np.int32]]:
    """The table of steps and the step of each activity row.

    Args:
        activity: the device work.
        group: of each activity row, an index into the other arguments, MISSING for none.
        verdicts, facts, parents, complete: by group; a parent is a group.
    """
    step = np.full(len(group), MISSING, np.int32)
    placed = np.flatnonzero(group >= 0)
    if not len(placed):
        return empty_table(), step
    rows = activity.table.iloc[placed]
    frame = pd.DataFrame(
        {
            "device": rows["device"].to_numpy(np.int64),
            "group": group[placed],
            "start_ns": rows["start_ns"].to_numpy(np.int64),
            "end_ns": (rows["start_ns"] + rows["duration_ns"]).to_numpy(np.int64),
        }
    )
    spans = frame.groupby(["device", "group"]).agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    spans = spans.reset_index().sort_values(["device", "start_ns", "end_ns"], kind="stable").reset_index(drop=True)
    key = pd.MultiIndex.from_frame(spans[["device", "group"]])
    step[placed] = key.get_indexer(pd.MultiIndex.from_frame(frame[["device", "group"]])).astype(np.int32)
    groups = spans["group"].tolist()
    above = [(device, parents[g]) for device, g in zip(spans["device"].tolist(), groups, strict=True)]
    table = pd.DataFrame(
        {
            "step": np.arange(len(spans), dtype=np.int32),
            "device": spans["device"].to_numpy(np.int32),
            "phase": [verdicts[g].phase for g in groups],
            "confidence": np.array([verdicts[g].confidence for g in groups], np.float64),
            "evidence": pd.Series([verdicts[g].evidence for g in groups], dtype=object),
            "start_ns": spans["start_ns"].to_numpy(np.int64),
            "end_ns": spans["end_ns"].to_numpy(np.int64),
            **{name: facts[name][groups] for name in FACTS},
            "parent_step": key.get_indexer(pd.MultiIndex.from_tuples(above)).astype(np.int32),
            "complete": complete[groups],
        }
    )
    return table.assign(phase=table["phase"].astype(object)), step
