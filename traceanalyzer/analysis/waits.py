"""When the host waited for the device: synchronisation, and copies whose call returned only when they were done.

What could be wrong: a driver may also block a launch while its queue is full; such waits look like long launch calls
and are not counted.
"""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import MEMCPY


def host_waits(line: Timeline) -> tuple[Ints, Ints]:
    """Beginnings and ends of the calls that waited for the device, in order of beginning. Shapes: (n,), (n,)."""
    launches = line.trace.launches
    sync = {code for code in launches["name"].unique() if "Synchronize" in line.trace.text(int(code))}
    begin = launches["start_ns"].to_numpy(np.int64)
    end = begin + launches["duration_ns"].to_numpy(np.int64)
    waits = launches["name"].isin(sync).to_numpy(np.bool_).copy()
    copies = line.table[(line.table["kind"] == MEMCPY) & (line.table["launch"] >= 0)]
    done = (copies["start_ns"] + copies["duration_ns"]).to_numpy(np.int64)
    call = copies["launch"].to_numpy(np.int64)
    waits[call[end[call] >= done]] = True
    return begin[waits], end[waits]
