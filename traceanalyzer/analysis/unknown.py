"""Kernels whose FLOPs or bytes are not known, by the time they take.

What communicates is left out: its bytes cross links and its time is a bucket of its own. What could be wrong: kernels
without an op are told apart by what their names say only.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL, MISSING

COLUMNS = ("category", "role", "op", "lacks", "count", "duration_ns")


def unknown_by_time(line: Timeline) -> pd.DataFrame:
    """What kind of kernels lack work, the longest first.

    Returns:
        One row per category, role, op (its name; "" where no op is known) and what it lacks ("flops", "bytes" or
        "both"), with the number of kernels and their summed duration: the columns `COLUMNS`.
    """
    table = line.table
    no_flops, no_bytes = table["flops"].isna().to_numpy(), table["bytes"].isna().to_numpy()
    kernel = (table["kind"] == KERNEL).to_numpy() & (table["category"] != "comm").to_numpy()
    rows = kernel & (no_flops | no_bytes)
    lacks = np.where(no_flops & no_bytes, "both", np.where(no_flops, "flops", "bytes"))
    op = table["op"].to_numpy(np.int64)[rows]
    code = np.append(line.trace.ops["name"].to_numpy(np.int64), MISSING)[op]  # a row without an op takes the last
    found = table.loc[rows, ["category", "role", "duration_ns"]].assign(op=code, lacks=lacks[rows])
    groups = found.groupby(["category", "role", "op", "lacks"], sort=False)["duration_ns"]
    total = groups.agg(["size", "sum"]).reset_index().rename(columns={"size": "count", "sum": "duration_ns"})
    total["op"] = pd.Series([line.trace.text(int(code)) for code in total["op"]], dtype=object)
    ordered = total.sort_values(["duration_ns", "category", "role", "op"], ascending=[False, True, True, True])
    return ordered[list(COLUMNS)].reset_index(drop=True)
