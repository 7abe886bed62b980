"""Leaves out what was launched when the recorder took no operations any more: the profiler runs on for a moment.

Shortly before a window on demand ends no operation is recorded any more (see `collect.inside.quiet`), while the GPU
still is: kernels without shapes, of steps without labels. Work counts by its launch, so what a whole step had queued is
kept however late it ran. Operations stay: those that began later were never recorded. What could be wrong: a file whose
clock is not the one of its recorder's block. Where all of it would have to go, all is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from traceanalyzer.trace import notes
from traceanalyzer.trace.collector import quiet_ns
from traceanalyzer.trace.tables import Metadata


def until_quiet(
    tables: Mapping[str, pd.DataFrame], metadata: Metadata, book: notes.NoteBook
) -> dict[str, pd.DataFrame]:
    """The tables without launches of that last moment, their kernels, and later kernels without a launch.

    Args:
        tables: as `finish` gives them.
        metadata: of the same file; its block says when the recorder took no more.
        book: told of the kernels that are left out.
    """
    kernels, launches = tables["kernels"], tables["launches"]
    quiet = quiet_ns(metadata.collector)
    if quiet is None or not len(kernels):
        return dict(tables)
    end = quiet - metadata.base_time_ns
    late_launch = launches["start_ns"].to_numpy(np.int64) > end
    correlation, of_launch = kernels["correlation"].to_numpy(np.int64), launches["correlation"].to_numpy(np.int64)
    launched = (correlation > 0) & np.isin(correlation, of_launch)
    in_time = np.isin(correlation, of_launch[~late_launch])
    late = np.where(launched, ~in_time, kernels["start_ns"].to_numpy(np.int64) > end)
    if late.all():
        return dict(tables)
    book.add(notes.AFTER_WINDOW, int(late.sum()))
    return {
        **tables,
        "kernels": kernels[~late].reset_index(drop=True),
        "launches": launches[~late_launch].reset_index(drop=True),
    }
