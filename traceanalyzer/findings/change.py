"""New times for the kernels of a phase: what a rule's change comes down to.

How much less a kernel takes for less work is the step model's business; `as_in` carries that from its groups of equal
kernels to their executions.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.forecast import StepModel
from traceanalyzer.analysis.forecast.groups import KEYS, with_keys
from traceanalyzer.findings.subject import Floats, PhaseSubject

MINIMAL_KERNEL_NS = 2_000.0
"""What a kernel takes however little it does (method: advice, fusion)."""


def as_in(subject: PhaseSubject, after: StepModel) -> Floats:
    """The time of every row of the subject when the groups of its model change as they do in `after`.

    Args:
        after: the subject's model after a change of its rows' times; the rows keep their places.
    """
    before = subject.model.durations
    ratio = np.divide(after.durations, before, out=np.ones_like(before), where=before > 0)
    by_key = pd.Series(ratio, index=_keys(subject.model.rows))
    by_key = by_key[~by_key.index.duplicated()]
    found = by_key.reindex(_keys(subject.rows)).fillna(1.0).to_numpy(np.float64)
    times: Floats = subject.duration * found
    return times


def _keys(rows: pd.DataFrame) -> pd.MultiIndex:
    """What the model groups kernels by, as comparable values."""
    words = {name: rows[name].astype(object).where(rows[name].notna(), "") for name in ("dtype", "role", "category")}
    return pd.MultiIndex.from_frame(with_keys(rows).assign(**words)[list(KEYS)])
