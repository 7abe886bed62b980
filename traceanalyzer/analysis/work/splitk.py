"""The work of the sum that follows a matrix product split along K: how often it was split shows in the product's grid.

cuBLAS runs such a product with one grid layer (z) per part of K, each of which writes its own M x N partial sums in
fp32; `splitKreduce_kernel` adds them up. So it reads splits x M x N x 4 bytes and writes the M x N result.

What could be wrong: a library may keep partial sums in 16 bits, which no record tells; the bytes are an estimate. A
batched product counts its batch along z too, so only unbatched ones tell their splits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from traceanalyzer.analysis.work.columns import Floats, Ints, numbers
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import Trace

_SUM = re.compile(r"splitKreduce_kernel")
_PARTIAL_BYTES = 4
_RESULT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


def split_k_sums(
    trace: Trace, table: pd.DataFrame, works: Sequence[OpWork], done: Ints, share: Floats, out: pd.DataFrame
) -> None:
    """Fill flops, bytes and estimated of the sums whose product, its splits and its result's type are known.

    Args:
        trace: what was read.
        table: `Activity.table`.
        works: the distinct works.
        done: per row the index of the work it did, MISSING for none.
        share: per row its share of that work.
        out: the work table to fill, aligned to `table`.
    """
    sums = np.array([_SUM.search(text) is not None for text in trace.strings] or [False], np.bool_)
    op = table["op"].to_numpy(np.int64)
    is_sum = sums[table["name"].to_numpy(np.int64)] & (op >= 0) & (done < 0)
    if not is_sum.any():
        return
    splits = trace.kernels["grid_z"].to_numpy(np.int64)[table["kernel"].to_numpy(np.int64)]
    result = numbers([_RESULT_BYTES.get(w.dtype or "") if w.category == "gemm" else None for w in works], done)
    m, n, batch = (out[name].to_numpy(np.int64) for name in ("m", "n", "batch"))
    telling = (share == 1.0) & (splits > 1) & (batch == 1) & (m > 0) & (n > 0) & ~np.isnan(result)
    products = pd.DataFrame({
        "op": op[telling],
        "elements": (m * n)[telling].astype(np.float64),
        "splits": splits[telling].astype(np.float64),
        "result": result[telling],
    }).drop_duplicates("op", keep=False).set_index("op")  # fmt: skip
    rows = np.flatnonzero(is_sum & np.isin(op, products.index) & ~pd.Series(op).where(is_sum).duplicated(keep=False))
    of = products.loc[op[rows]]
    for column, values in (
        ("flops", of["elements"] * of["splits"]),
        ("bytes", of["elements"] * (of["splits"] * _PARTIAL_BYTES + of["result"])),
        ("estimated", True),
    ):
        filled = out[column].to_numpy(copy=True)
        filled[rows] = values
        out[column] = filled
