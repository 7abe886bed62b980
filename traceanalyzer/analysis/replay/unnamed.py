"""A capture whose launches do not name their kernels, matched with a replay by number and by what its ops need.

A graph holds one kernel for each launch that was captured, and runs them in that order, so a replay of as many kernels
can be of that graph. Whether it is tells the ops: given the replayed kernels' names, nearly every op with a known work
must have launched a kernel that does such work (a product one of products, a norm one of norms), and equal calls must
have launched equal kernels: one that differs from those of the other layers gets no work.

What could be wrong: two graphs of as many kernels of the same kinds in the same order differ in size only; the size is
told by the capture's label and the step's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from traceanalyzer.analysis import activity as activities
from traceanalyzer.analysis import kernels, work
from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.replay.helpers import fill_helpers
from traceanalyzer.analysis.replay.reference import GRID_AXES, Evidence, Ints, Part, Reference, references
from traceanalyzer.analysis.work.calls import works_of_calls
from traceanalyzer.analysis.work.columns import FLOATS, INTEGERS, Bools
from traceanalyzer.analysis.work.doers import NEUTRAL
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import MISSING, Trace

_FIT = 0.95
"""At least this share of the ops with a known work must have found a kernel that does it, and the other way round."""
_KIND = dict.fromkeys(MATRIX_CATEGORIES, "product")
_TELLING = ("product", "attention", "norm", "rope", "kv_cache")
_SEVERAL, _RARE = 4, 0.1
"""Of so many equal calls, a kernel of fewer than this share of them is not theirs."""


def with_names(evidence: Evidence, part: Part, names: Sequence[str], grids: Ints) -> Reference | None:
    """The reference that a captured graph is if its kernels are those of a replay; None where they cannot be.

    Args:
        evidence: a capture without names.
        part: one of its graphs.
        names, grids: the replayed kernels, see `Reference`.
    """
    if len(part.rows) != len(names):
        return None
    texts = sorted(set(names))
    first = len(evidence.trace.strings)
    place = {text: first + i for i, text in enumerate(texts)}
    table = evidence.trace.kernels.iloc[evidence.activity.table["kernel"].to_numpy(np.int64)[part.rows]]
    table = table.reset_index(drop=True).assign(
        name=np.array([place[name] for name in names], np.int32),
        **{axis: grids[:, i].astype(np.int32) for i, axis in enumerate(GRID_AXES)},
    )
    run = replace(evidence.trace, strings=(*evidence.trace.strings, *texts), kernels=table)
    activity = activities.build(run)
    measured = work.measure(run, activity, kernels.classes(run, activity))
    found, works = works_of_calls(run, activity)
    if not _fits(activity, measured, found, works):
        return None
    measured = fill_helpers(run, activity, work.fill_experts(run, activity, measured, None))
    odd = _odd(run, activity)
    measured.loc[odd, [*FLOATS]] = np.nan
    measured.loc[odd, [*INTEGERS]] = MISSING
    own = replace(part, rows=np.arange(len(names)))
    named = replace(evidence, trace=run, activity=activity, work=measured, parts=(own,), named=True)
    (reference,) = references(named)
    return reference


def _fits(activity: Activity, measured: pd.DataFrame, found: Ints, works: Sequence[OpWork]) -> bool:
    """Whether ops found kernels for their works, and kernels that say what they do lie in such ops."""
    known = measured["flops"].notna() | measured["bytes"].notna() | (measured["heads"] > 0)
    op, has = activity.table["op"].to_numpy(np.int64), found >= 0
    asked, answered = np.unique(op[has]), np.unique(op[has & known.to_numpy()])
    if not len(asked) or len(answered) < _FIT * len(asked):
        return False
    helping = measured["role"].isin(HELPER_ROLES).to_numpy()
    kinds = [_KIND.get(one, one) for one in measured["category"].to_numpy(object)]
    wanted = [_KIND.get(works[place].category, works[place].category) if place >= 0 else "" for place in found.tolist()]
    telling = [
        want == kind or want in NEUTRAL
        for kind, want, helps in zip(kinds, wanted, helping, strict=True)
        if want and kind in _TELLING and not helps
    ]
    return bool(telling) and sum(telling) >= _FIT * len(telling)


def _odd(run: Trace, activity: Activity) -> Bools:
    """Kernels of another name than nearly all others have that equal calls launched in the same place."""
    table = activity.table
    op = table["op"].to_numpy(np.int64)
    calls = run.ops[["name", "dims", "types", "concrete"]].to_numpy(np.int64)[np.maximum(op, 0)]
    frame = pd.DataFrame({"call": pd.factorize(pd.Series(map(tuple, calls.tolist())))[0], "name": table["name"]})
    frame["place"] = table.groupby("op").cumcount().to_numpy()
    alike = frame.groupby(["call", "place"])["name"].transform("size")
    same = frame.groupby(["call", "place", "name"])["name"].transform("size")
    odd: Bools = (op >= 0) & (alike >= _SEVERAL).to_numpy() & (same < _RARE * alike).to_numpy()
    return odd
