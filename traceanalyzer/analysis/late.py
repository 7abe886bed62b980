"""Whether the host was late: the device was idle and the launch call of what ended that had not come through.

The one definition of it, for the ledger's idle causes, the step model, the replay of a step and the rules.

What could be wrong: a driver that blocks a launch because its queue is full makes the call of a queued kernel run into
the gap before it, which then looks late.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.trace.tables import MISSING

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def late(called: Ints, returned: Ints, is_kernel: Bools, since: Ints | Floats) -> Bools:
    """Which launch calls were late for a device that was idle since some time; False where none was recorded.

    A call that began after that was. So was the call of a kernel that was still running then: the call only hands the
    kernel over. A copy's call may run for as long as it waits for the device, so its return says nothing.

    Args:
        called, returned: when the launch calls began and returned, in nanoseconds; MISSING: not recorded. Shapes: (n,).
        is_kernel: what was launched is a kernel, not a copy or a fill. Shape: (n,).
        since: when the device fell idle, in nanoseconds. Shape: (n,).
    """
    found: Bools = (called != MISSING) & ((called > since) | (is_kernel & (returned > since)))
    return found
