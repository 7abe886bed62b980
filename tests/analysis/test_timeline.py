"""The rows of one device, joined from tables whose index counts those of all devices."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.analysis.lines import ROW_DEFAULTS, STEP_DEFAULTS, device, trace
from traceanalyzer.analysis import timeline


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("ranged", [True, False])
def test_rows_join_by_place_whatever_their_index(first: int, ranged: bool) -> None:
    index = pd.RangeIndex(first, first + 4) if ranged else pd.Index([first + 9, first + 2, first + 5, first])
    own = {name: ROW_DEFAULTS[name] for name in ("kernel", "op", "launch", "name", "kind", "device", "stream")}
    activity = pd.DataFrame({"start_ns": [0, 10, 30, 40], "duration_ns": [10, 10, 10, 10], "call": range(4)}, index)
    work = pd.DataFrame({"flops": [1.0, 2.0, 3.0, 4.0], "bytes": np.nan, "tensor_core": 0, "dtype": "bf16"}, index)
    steps = pd.DataFrame(
        [
            {**STEP_DEFAULTS, "phase": "prefill", "start_ns": 0, "end_ns": 20},
            {**STEP_DEFAULTS, "phase": "decode", "start_ns": 40, "end_ns": 50},
        ],
        index=[7, 8],
    )
    line = timeline.build(trace(), device(), activity.assign(**own), work, steps, np.array([7, 7, -1, 8], np.int32))
    assert line.table["start_ns"].tolist() == [0, 10, 30, 40]
    assert line.table["flops"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert line.table["phase"].tolist() == ["prefill", "prefill", "other", "decode"]
    assert line.table["step"].tolist() == [7, 7, -1, 8]
    assert line.table.index.tolist() == [0, 1, 2, 3]
    assert line.steps["busy_ns"].tolist() == [20, 10]
