"""Communication that no computing hides."""

from __future__ import annotations

import numpy as np

from traceanalyzer.findings.answer import Answer, not_applicable, passed, proposal
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import PhaseSubject

MATTERS = 0.10


def exposed(subject: PhaseSubject) -> Answer:
    """Does the step wait for communication with other devices? The saving is that of hiding all of it."""
    rows = subject.of_category("comm")
    if not rows.any():
        return not_applicable("no_communication")
    hidden = proposal(subject, np.zeros(len(rows)), rows, (), 0.0)
    share = hidden.saving_ns / subject.step_ns
    if share <= MATTERS:
        return passed("communication_hidden", share=share)
    calls = float(rows.sum()) / subject.count
    evidence = (Fact("communication_share", {"share": share, "count": calls, "ns": subject.time(rows) / calls}),)
    return proposal(subject, np.zeros(len(rows)), rows, evidence, 0.4, ("all_hidden", "includes_waiting_for_ranks"))
