"""Which of an op's kernels do its work: the main ones, and each one's share.

One op may launch several kernels. Its work goes to those of the name that took longest among the kernels of the work's
category, helpers such as a split-K epilogue or a combine pass left out; several of that name share it in proportion to
their time. Where the kernels that were recorded are all helpers or plainly something else (the main one fell outside
the window), none gets the work.

What could be wrong: a kernel whose name says nothing counts as possible, so where it is alone it gets the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.work.columns import Bools, Floats, Ints
from traceanalyzer.analysis.work.opwork import OpWork

NEUTRAL = frozenset({"other", "fused_triton"})
"""Categories of kernel names that do not say what the kernel does."""
_NOT_COMPUTE = frozenset({"memcpy", "memset", "comm"})


@dataclass(frozen=True)
class Names:
    """What kernel names say. `of` gives each activity row's entry in the other columns, whose last is for no class."""

    of: Ints
    category: Sequence[str]
    role: Sequence[str]
    tensor_core: Sequence[str]
    dtype: Sequence[str | None]

    def has_role(self, roles: frozenset[str]) -> Bools:
        """Which rows' kernels have one of some roles."""
        found: Bools = np.array([role in roles for role in self.role], np.bool_)[self.of]
        return found

    def has_category(self, categories: frozenset[str]) -> Bools:
        """Which rows' kernels are of one of some categories."""
        found: Bools = np.array([name in categories for name in self.category], np.bool_)[self.of]
        return found


def names_of(table: pd.DataFrame, classes: pd.DataFrame, on_cpu: bool) -> Names:
    """The class of every row's kernel; a name without one, and every op of a CPU, is "other"."""
    if on_cpu:
        return Names(np.zeros(len(table), np.int64), ["other"], ["other"], ["no"], [None])
    of = classes.index.get_indexer(pd.Index(table["name"].to_numpy())).astype(np.int64)  # -1, so the last, for none
    return Names(
        of,
        [*classes["category"], "other"],
        [*classes["role"], "other"],
        [*classes["tensor_core"], "maybe"],
        [*classes["dtype"], None],
    )


def doers(
    table: pd.DataFrame, found: Ints, works: Sequence[OpWork], names: Names, on_cpu: bool
) -> tuple[Bools, Floats]:
    """Which rows do their op's work, and each one's share of it.

    Args:
        table: `Activity.table`.
        found: per row the index of its op's work, MISSING for none.
        works: the distinct works.
        names: what the kernels' names say.
        on_cpu: the rows are ops, which do their own work.
    """
    rank = _rank(found, works, names, on_cpu)
    main, share = np.zeros(len(table), np.bool_), np.zeros(len(table), np.float64)
    op = table["op"].to_numpy(np.int64)
    rows = np.flatnonzero((found >= 0) & (rank >= 0))
    alone = np.bincount(op[rows])[op[rows]] == 1 if len(rows) else np.zeros(0, np.bool_)
    main[rows[alone]], share[rows[alone]] = True, 1.0
    rows = rows[~alone]
    picked = pd.DataFrame({
        "row": rows,
        "op": op[rows],
        "name": table["name"].to_numpy(np.int64)[rows],
        "rank": rank[rows],
        "time": table["duration_ns"].to_numpy(np.float64)[rows],
    })  # fmt: skip
    total = picked.groupby(["op", "name", "rank"])["time"].sum().reset_index()
    best = total.sort_values(["op", "rank", "time"], kind="stable").drop_duplicates("op", keep="last")
    chosen = picked.merge(best.rename(columns={"time": "all"}), on=["op", "name", "rank"])
    count = chosen.groupby("op")["row"].transform("size")
    portion = np.where(chosen["all"] > 0, chosen["time"] / chosen["all"].where(chosen["all"] > 0, 1.0), 1.0 / count)
    main[chosen["row"].to_numpy()] = True
    share[chosen["row"].to_numpy()] = portion
    return main, share


def _rank(found: Ints, works: Sequence[OpWork], names: Names, on_cpu: bool) -> npt.NDArray[np.int8]:
    """How well each row's kernel fits its op's work, see `_fit`."""
    if on_cpu:
        return np.ones(len(found), np.int8)
    words = sorted({*names.category, *(w.category for w in works)})
    helper = len(words)
    fits = np.full((helper + 1, helper), -1, np.int8)
    fits[:helper] = [[_fit(name, wanted) for wanted in words] for name in words]
    ran = [
        helper if role in HELPER_ROLES else words.index(name)
        for name, role in zip(names.category, names.role, strict=True)
    ]
    wanted = [words.index(w.category) for w in works] + [0]
    rank: npt.NDArray[np.int8] = fits[np.array(ran)[names.of], np.array(wanted)[found]]
    return rank


def _fit(category: str, wanted: str) -> int:
    """How well a kernel of some category fits work of the wanted one: 1 its own, 0 possible, -1 not."""
    matrix = wanted in MATRIX_CATEGORIES
    if category == wanted or (matrix and category in MATRIX_CATEGORIES):
        return 1
    strict = matrix or wanted == "attention"
    possible = category in NEUTRAL if strict else category not in _NOT_COMPUTE
    return 0 if possible else -1
