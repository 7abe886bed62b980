"""When the host waited for the device: synchronisation, and copies whose call returned only when they were done.

What could be wrong: a driver may also block a launch while its queue is full; such waits look like long launch calls
and are not counted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import MEMCPY

Bools = npt.NDArray[np.bool_]


def waiting_calls(line: Timeline) -> Bools:
    """Which of the trace's launches, the runtime calls, waited for the device. Shape: (launches,)."""
    launches = line.trace.launches
    sync = {code for code in launches["name"].unique() if "Synchronize" in line.trace.text(int(code))}
    end = (launches["start_ns"] + launches["duration_ns"]).to_numpy(np.int64)
    waits: Bools = launches["name"].isin(sync).to_numpy(np.bool_).copy()
    copied = (line.table["kind"] == MEMCPY) & (line.table["launch"] >= 0)
    copies = line.table.loc[copied, ["start_ns", "duration_ns", "launch"]]
    done = (copies["start_ns"] + copies["duration_ns"]).to_numpy(np.int64)
    call = copies["launch"].to_numpy(np.int64)
    waits[call[end[call] >= done]] = True
    return waits


def host_waits(line: Timeline) -> tuple[Ints, Ints]:
    """Beginnings and ends of the calls that waited for the device, in order of beginning. Shapes: (n,), (n,)."""
    calls = line.trace.launches[waiting_calls(line)]
    begin = calls["start_ns"].to_numpy(np.int64)
    return begin, begin + calls["duration_ns"].to_numpy(np.int64)
