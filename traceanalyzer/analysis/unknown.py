"""Kernels whose FLOPs or bytes are not known, by the time they take.

What communicates is left out: its bytes cross links and its time is a bucket of its own. What could be wrong: kernels
without an op are told apart by what their names say only.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.kernels import classify
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.work.columns import Bools
from traceanalyzer.catalog.kernel_rules import UNKNOWN
from traceanalyzer.trace.tables import KERNEL, MISSING

COLUMNS = ("category", "role", "op", "lacks", "count", "duration_ns")
KERNEL_COLUMNS = ("phase", "name", "category", "role", "op", "lacks", "count", "duration_ns", "share", "rule")


def unknown_by_time(line: Timeline) -> pd.DataFrame:
    """What kind of kernels lack work, the longest first.

    Returns:
        One row per category, role, op (its name; "" where no op is known) and what it lacks ("flops", "bytes" or
        "both"), with the number of kernels and their summed duration: the columns `COLUMNS`.
    """
    rows = _without(line)
    groups = rows.groupby(["category", "role", "op", "lacks"], sort=False, observed=True)["duration_ns"]
    total = groups.agg(["size", "sum"]).reset_index().rename(columns={"size": "count", "sum": "duration_ns"})
    total["op"] = pd.Series([line.trace.text(int(code)) for code in total["op"]], dtype=object)
    ordered = total.sort_values(["duration_ns", "category", "role", "op"], ascending=[False, True, True, True])
    return ordered[list(COLUMNS)].reset_index(drop=True)


def kernels_without_work(line: Timeline) -> pd.DataFrame:
    """Which kernels lack work in which phase, the longest first.

    Returns:
        The columns `KERNEL_COLUMNS`: `name` and `op` are string codes (`op` MISSING where none is known), `share` is of
        the time of the phase's kernels that compute, `rule` the kernel rule that knows the name, None where none does.
        Of a phase whose kernels take no time there is no share, and no row.
    """
    rows = _without(line)
    keys = ["phase", "name", "category", "role", "op", "lacks"]
    groups = rows.groupby(keys, sort=False, observed=True)["duration_ns"]
    total = groups.agg(["size", "sum"]).reset_index().rename(columns={"size": "count", "sum": "duration_ns"})
    compute = line.table.loc[_computing(line)]
    phase = compute.groupby("phase", observed=True)["duration_ns"].sum()
    total = total[total["phase"].isin(phase.index[phase > 0])].reset_index(drop=True)
    total["share"] = total["duration_ns"] / phase.reindex(total["phase"]).to_numpy()
    rules = [classify(line.trace.text(int(name))).rule for name in total["name"]]
    total["rule"] = pd.Series([None if rule == UNKNOWN.id else rule for rule in rules], dtype=object)
    ordered = total.sort_values(["duration_ns", "phase", "name", "op"], ascending=[False, True, True, True])
    return ordered[list(KERNEL_COLUMNS)].reset_index(drop=True)


def _computing(line: Timeline) -> Bools:
    kernel: Bools = (line.table["kind"] == KERNEL).to_numpy() & (line.table["category"] != "comm").to_numpy()
    return kernel


def _without(line: Timeline) -> pd.DataFrame:
    """The kernels that compute and lack work, one row each: phase, name, category, role, op, lacks, duration_ns."""
    table = line.table
    no_flops, no_bytes = table["flops"].isna().to_numpy(), table["bytes"].isna().to_numpy()
    rows = _computing(line) & (no_flops | no_bytes)
    lacks = np.where(no_flops & no_bytes, "both", np.where(no_flops, "flops", "bytes"))
    op = table["op"].to_numpy(np.int64)[rows]
    code = np.append(line.trace.ops["name"].to_numpy(np.int64), MISSING)[op]  # a row without an op takes the last
    columns = ["phase", "name", "category", "role", "duration_ns"]
    return table.loc[rows, columns].assign(op=code, lacks=lacks[rows])
