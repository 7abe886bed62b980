"""Which executions of kernels are equal: the model groups by it, and what holds for a group is carried back by it.

One name can multiply by weights here and by a cache there, and a sum with an unknown is unknown.
"""

from __future__ import annotations

import pandas as pd

KEYS = ("name", "category", "role", "dtype", "tensor_core", "known", "memory_bound", "weighted", "attends")


def with_keys(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the `KEYS` that follow from their work: known, memory_bound, weighted and attends."""
    return rows.assign(
        known=rows["compute_ns"].notna() & rows["memory_ns"].notna(),
        memory_bound=rows["memory_ns"] > rows["compute_ns"],
        weighted=rows["weight_bytes"].notna(),
        attends=rows["kv_bytes"].notna(),
    )
