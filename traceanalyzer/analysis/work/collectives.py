"""Which collective a communication kernel runs, where its own name does not tell but the op that launched it does.

RCCL runs every collective through one kernel, and NCCL an all-to-all as sends and receives. The launching op
(`c10d::alltoall_base_`, `vllm::all_reduce`) is the recorded one or, around `record_param_comms`, one of its parents.

What could be wrong: ops that batch several collectives into one launch are known by the outermost name that matches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from traceanalyzer.analysis.work.columns import objects
from traceanalyzer.analysis.work.doers import Names
from traceanalyzer.trace.tables import MISSING, Trace

_COMM, _UNTOLD = frozenset({"comm"}), frozenset({"collective", "send_recv"})
_OPS: Mapping[str, re.Pattern[str]] = {
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_reduce": re.compile(r"all_?reduce", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "send_recv": re.compile(r"\b(?:c10d::)?(?:send|recv)(?:_any_source)?_?$|batch_isend_irecv", re.IGNORECASE),
    "reduce": re.compile(r"c10d::reduce_$", re.IGNORECASE),
}
_LEVELS = 3
"""How far up the op that names the collective may be: record_param_comms, the c10d op, the engine's op."""


def name_collectives(trace: Trace, table: pd.DataFrame, names_of_kernels: Names, out: pd.DataFrame) -> None:
    """Replace the roles of communication kernels that their ops tell better.

    Args:
        trace: what was read.
        table: `Activity.table`.
        names_of_kernels: what the kernels' names say.
        out: the work table whose `role` to change, aligned to `table`.
    """
    rows = np.flatnonzero(names_of_kernels.has_category(_COMM) & names_of_kernels.has_role(_UNTOLD))
    if not len(rows):
        return
    role = out["role"].to_numpy(object, copy=True)
    parent, names = trace.ops["parent"].to_numpy(np.int64), trace.ops["name"].to_numpy(np.int64)
    told = {int(code): _collective(trace.text(int(code))) for code in np.unique(names)}
    op = table["op"].to_numpy(np.int64)[rows]
    for _ in range(_LEVELS):
        known = np.flatnonzero(op >= 0)
        found = [told[code] for code in names[op[known]].tolist()]
        for at, word in zip(known.tolist(), found, strict=True):
            if word is not None:
                role[rows[at]] = word
        op[known] = np.where([word is None for word in found], parent[op[known]], MISSING)
    out["role"] = objects(role)


def _collective(name: str) -> str | None:
    return next((word for word, pattern in _OPS.items() if pattern.search(name)), None)
