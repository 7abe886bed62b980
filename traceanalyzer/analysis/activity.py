"""What ran on the device: one row per GPU activity, or per piece of CPU work in a CPU-only run.

`Activity.table` is the spine of the analysis; later stages add columns aligned to its rows, never other orders.

    kernel i32       row in Trace.kernels (MISSING on a CPU device)
    op i32           row in Trace.ops that owns it: the innermost op enclosing the launch (MISSING: none recorded)
    launch i32       row in Trace.launches (MISSING: launched before the window, or not recorded)
    name i32         string code; on a CPU device the op's name
    kind i8          KERNEL, MEMCPY, MEMSET
    start_ns i64, duration_ns i64, device i32, stream i64
    call i32         counts as one execution per distinct value (a CPU op's self time can be several pieces)

sorted by (device, start_ns).
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Activity:
    """The device activity of one trace. `on_cpu`: the device is the CPU and the rows are ops, not GPU kernels."""

    table: pd.DataFrame
    on_cpu: bool
