"""Communication that no computing hides."""

from __future__ import annotations

from traceanalyzer.findings.answer import Answer, not_applicable, passed, proposal
from traceanalyzer.findings.change import touching
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import PhaseSubject

MATTERS = 0.10


def exposed(subject: PhaseSubject) -> Answer:
    """Does the step wait for communication with other devices? The saving is that of hiding all of it."""
    rows = subject.of_category("comm")
    if not rows.any():
        return not_applicable("no_communication")
    model, mine = touching(subject, rows)
    share = float(model.durations[mine].sum()) / subject.step_ns
    if share <= MATTERS:
        return passed("communication_hidden", share=share)
    calls = float(rows.sum()) / subject.count
    evidence = (Fact("communication_share", {"share": share, "count": calls, "ns": subject.time(rows) / calls}),)
    return proposal(subject, model.scaled(mine, 0.0), rows, evidence, 0.4, ("all_hidden", "includes_waiting_for_ranks"))
