"""Which kind of work each kernel does: category, role, whether it uses tensor cores, in which data type.

Decided per unique name by the rules of `catalog.kernel_rules`. What could be wrong: the name may not say enough. Then
`tensor_core` is "maybe" and `dtype` None, and the data types of the op that launched the kernel settle both later; if
nothing does, they stay unknown. A rule says what a kernel uses on a GPU that has the units: a Tensile or Triton matrix
kernel on a GPU without tensor cores still reads "yes" here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.catalog import kernel_rules
from traceanalyzer.catalog.kernel_rules import TensorCore
from traceanalyzer.trace.tables import KERNEL, MEMCPY, MEMSET, Trace

MATRIX_CATEGORIES = ("gemm", "gemv", "moe", "conv")
"""Categories of kernels that multiply by weights."""
HELPER_ROLES = frozenset({"splitk-epilogue", "split-combine", "routing", "metadata"})
"""Roles of kernels that help another one with its work and have none of their own to be measured by."""

COLUMNS = ("rule", "category", "role", "tensor_core", "dtype", "phase_hint")


@dataclass(frozen=True, slots=True)
class KernelClass:
    """What a kernel's name says about it.

    `rule` is the id of the deciding rule ("unknown" if none), `category` one of `kernel_rules.categories()`, `dtype`
    the type it computes in (None: not in the name), `phase_hint` prefill or decode with :strong or :medium,
    step-start, step-end, training, or None.
    """

    rule: str
    category: str
    role: str
    tensor_core: TensorCore
    dtype: str | None
    phase_hint: str | None


#: Copies and fills are known by the kind of their record, whatever they are called.
_BY_KIND = {
    MEMCPY: KernelClass("memcpy", "memcpy", "memcpy", "no", None, None),
    MEMSET: KernelClass("memset", "memset", "memset", "no", None, None),
}
#: On a CPU the rows are ops, which kernel rules do not know; their category comes from their work model.
_CPU_OP = KernelClass("cpu-op", "other", "other", "no", None, None)


def classify(name: str) -> KernelClass:
    """The class of a kernel by its raw name. Cached: a trace holds few distinct names."""
    return _classified(name[: kernel_rules.NAME_LIMIT])


@lru_cache(maxsize=16_384)
def _classified(name: str) -> KernelClass:
    rule = kernel_rules.match(name)
    return KernelClass(rule.id, rule.category, rule.role, rule.tensor_core, rule.dtype(name), rule.phase_hint)


def classes(trace: Trace, activity: Activity) -> pd.DataFrame:
    """The class of every name that occurs in the activity.

    Returns one row per name, indexed by its string code (ascending, index name "name"), with the object columns
    `COLUMNS`. Memcpy and memset records are classed by kind. On a CPU device every row is an op: category "other" and
    no tensor cores, for the work model to replace.
    """
    first = activity.table.drop_duplicates("name").sort_values("name")
    rows = [
        _class_of(trace.text(int(code)), int(kind), activity.on_cpu)
        for code, kind in zip(first["name"], first["kind"], strict=True)
    ]
    index = pd.Index(first["name"].to_numpy(), name="name")
    return pd.DataFrame(
        {column: pd.Series([getattr(row, column) for row in rows], index=index, dtype=object) for column in COLUMNS},
        index=index,
    )


def _class_of(name: str, kind: int, on_cpu: bool) -> KernelClass:
    if kind != KERNEL:
        return _BY_KIND[kind]
    return _CPU_OP if on_cpu else classify(name)
