"""The one definition of a late host: by hand, each case of a call against the moment the device fell idle."""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.late import late
from traceanalyzer.trace.tables import MISSING

IDLE_SINCE = 100
CALLS = {  # called, returned: late for a kernel, late for a copy
    (50, 60): (False, False),
    (50, 100): (False, False),  # returned just as the device fell idle
    (50, 101): (True, False),  # a copy's call may be waiting for the device
    (100, 100): (False, False),
    (101, 110): (True, True),
    (MISSING, MISSING): (False, False),
}


def test_a_call_is_late_when_it_began_afterwards_and_a_kernels_also_when_it_was_still_running() -> None:
    called, returned = (np.array(times) for times in zip(*CALLS, strict=True))
    since = np.full(len(CALLS), IDLE_SINCE)
    for column, is_kernel in enumerate((True, False)):
        found = late(called, returned, np.full(len(CALLS), is_kernel), since)
        assert found.tolist() == [expected[column] for expected in CALLS.values()]


def test_nothing_recorded_is_not_late_even_before_the_clock_began() -> None:
    missing = np.array([MISSING])
    assert late(missing, missing, np.array([True]), np.array([-50.0])).tolist() == [False]
