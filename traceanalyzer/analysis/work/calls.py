"""The distinct op calls of a trace, each evaluated once, and which of them every activity row belongs to.

What could be wrong: two calls are the same where name, shapes, types, values and strides are; what an op takes from
elsewhere (a context length kept in a tensor) is not seen, so its work model must answer "unknown".
"""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.cpu import kernel_ops
from traceanalyzer.analysis.shapes import signature
from traceanalyzer.analysis.work.columns import Ints, distinct
from traceanalyzer.analysis.work.inductor import inductor_work, is_inductor
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.analysis.work.registry import op_work
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

_CALL = ("name", "dims", "types", "concrete", "strides")


def works_of_calls(trace: Trace, activity: Activity) -> tuple[Ints, list[OpWork]]:
    """Per activity row an index into the distinct works (none twice), MISSING where its op has none."""
    table = activity.table
    op = table["op"].to_numpy(np.int64)
    usable = (op >= 0) & (table["kind"].to_numpy() == KERNEL)
    if activity.on_cpu:
        usable &= kernel_ops(trace)[op]
    rows = np.flatnonzero(usable)
    number, first = distinct([trace.ops[column].to_numpy(np.int64)[op[rows]] for column in _CALL])
    calls = trace.ops[list(_CALL)].iloc[op[rows[first]]]
    works = [_evaluate(trace, key) for key in calls.to_numpy(np.int64).tolist()]
    place: dict[OpWork, int] = {}
    for work in works:
        if work is not None:
            place.setdefault(work, len(place))
    index = np.array([MISSING if w is None else place[w] for w in works], np.int64)
    found = np.full(len(table), MISSING, np.int64)
    found[rows] = index[number]
    return found, list(place)


def _evaluate(trace: Trace, key: list[int]) -> OpWork | None:
    name, *arguments = (trace.text(code) for code in key)
    call = signature(*arguments)
    return inductor_work(name, call) if is_inductor(name) else op_work(name, call)
