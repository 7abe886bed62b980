"""Leaves out what was launched after the recorder had closed its window: the profiler runs on for a moment.

A window on demand ends some time before Kineto does, and from then on no operation is recorded (see
`collect.inside.quiet`), while the GPU still is: kernels without shapes, of steps without labels. Work counts by its
launch, so what a whole step had queued is kept however late it ran. What could be wrong: a file whose clock is not the
one of its recorder's block. Times that do not begin before the window closed are therefore left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from traceanalyzer.trace import notes
from traceanalyzer.trace.collector import number, section
from traceanalyzer.trace.tables import Metadata


def until_closed(
    tables: Mapping[str, pd.DataFrame], metadata: Metadata, book: notes.NoteBook
) -> dict[str, pd.DataFrame]:
    """The tables without launches after the window's end, their kernels, and later kernels without a launch.

    Args:
        tables: as `finish` gives them.
        metadata: of the same file; its block says when the window was closed.
        book: told of the kernels that are left out.
    """
    kernels, launches = tables["kernels"], tables["launches"]
    closed = number(section(metadata.collector, "window"), "closed_ns")
    if closed is None or not len(kernels):
        return dict(tables)
    end = int(closed) - metadata.base_time_ns
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
