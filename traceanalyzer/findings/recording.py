"""What the recording itself lacks: a window too short to judge decode by."""

from __future__ import annotations

from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.analysis.steps import RunFacts
from traceanalyzer.findings.answer import Answer, Remark, not_applicable, passed
from traceanalyzer.findings.model import Fact

ENOUGH_STEPS = 8
"""Complete decode steps from which their mean and spread can be trusted."""


def judged(run: RunFacts) -> bool:
    """Does a run get advice: one that generates or does a part of it, or may be; not training, nor a graph capture."""
    return run.workload not in ("training", "capture")


def window(analysis: Analysis) -> Answer:
    """Does the window hold enough complete decode steps?"""
    line, run = analysis.main.timeline, analysis.main_run
    if not judged(run):
        return not_applicable("not_generation")
    steps = line.steps[line.steps["phase"] == "decode"]
    if not len(steps) and run.workload != "generation":
        return not_applicable("no_complete_step", phase="decode")
    complete = int(steps["complete"].astype(bool).sum())
    if complete >= ENOUGH_STEPS:
        return passed("enough_steps", count=complete)
    cut = len(steps) - complete
    evidence = [Fact("few_complete_steps", {"count": complete, "needed": ENOUGH_STEPS})]
    evidence += [Fact("steps_cut", {"count": cut})] if cut else []
    return Remark(tuple(evidence), 0.95)
