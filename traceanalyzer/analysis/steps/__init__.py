"""Steps and phases: which forward passes a trace holds, what each is, how sure that is and why.

`find` is the only entrance. Evidence in order of trust: labels of engines, token arithmetic from op shapes, kernel
families, graph structure, repetition. There is no default phase: what the evidence does not settle is `other`.
"""

from __future__ import annotations

from traceanalyzer.analysis.steps.find import find
from traceanalyzer.analysis.steps.model import NOT_EXECUTED, PHASES, RunFacts, Steps

__all__ = ["NOT_EXECUTED", "PHASES", "RunFacts", "Steps", "find"]
