"""What was recorded of one trace, as both ways of giving work to replayed kernels take it, and which kernels lack work.

What could be wrong: a kernel whose FLOPs or bytes alone are known counts as worked out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.work.columns import Bools
from traceanalyzer.trace.tables import KERNEL, Trace


@dataclass(frozen=True)
class Recorded:
    """One trace with its activity, the work of it, and its steps.

    Args:
        trace, activity: what was read, and what ran.
        work: as `measure` returns it, a row per activity row.
        steps: `Steps.table`.
        activity_step: the step of every row, MISSING where it belongs to none.
    """

    trace: Trace
    activity: Activity
    work: pd.DataFrame
    steps: pd.DataFrame
    activity_step: np.ndarray

    @cached_property
    def in_steps(self) -> Bools:
        """The kernels that ran in a step; none on a CPU."""
        kernel = self.activity.table["kind"].to_numpy() == KERNEL
        inside: Bools = kernel & (self.activity_step >= 0) & (not self.activity.on_cpu)
        return inside

    @cached_property
    def unknown(self) -> Bools:
        """Rows of which neither FLOPs nor bytes are known."""
        rows: Bools = self.work["flops"].isna().to_numpy() & self.work["bytes"].isna().to_numpy()
        return rows
