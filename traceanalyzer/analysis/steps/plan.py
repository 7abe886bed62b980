"""Which activity belongs to which step, before anything is said about the steps: by labels, else by segments.

What could be wrong with it: a trace whose labels cover only a part of the run keeps the rest as no step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps import segments
from traceanalyzer.analysis.steps.inputs import Inputs
from traceanalyzer.analysis.steps.join import LabelledSteps, LabelTable, between
from traceanalyzer.analysis.steps.labels import Label
from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.submission import Submission
from traceanalyzer.trace.tables import MISSING, USER

Locate = Callable[[Ints, Ints], Ints]


@dataclass(frozen=True)
class Plan:
    """Groups of activity, each one step. Everything indexed by group unless said otherwise.

    rows: group of each row of `tokens.step_rows`; activity: group of each row of `Activity.table`; locate: the group of
    any host event by (thread, time); input: row of `Inputs.frame`, MISSING for none; opened, closed: whether the
    step's begin and end were recorded; cut: whether its recorder says that the window ended in it; parent: group it is
    a draft pass of, MISSING; how: what the boundaries rest on.
    """

    rows: Ints
    activity: Ints
    locate: Locate
    labels: tuple[Label | None, ...]
    parent: tuple[int, ...]
    input: Ints
    opened: Bools
    closed: Bools
    cut: Bools
    how: str

    @property
    def groups(self) -> int:
        """How many there are."""
        return len(self.labels)

    @property
    def labelled(self) -> Bools:
        """Which of them a label names."""
        return np.array([label is not None for label in self.labels], np.bool_)


def from_labels(labelled: LabelledSteps, rows: pd.DataFrame, inputs: Inputs) -> Plan:
    """The plan that step labels give. Labels that only the device has are not whole, nor those that a window cut."""
    count = len(labelled.labels)
    frame = inputs.frame
    owner = labelled.spans.locate(frame["thread"].to_numpy(np.int64), frame["time_ns"].to_numpy(np.int64))
    first = np.full(count, MISSING, np.int64)
    for row in range(len(frame) - 1, -1, -1):
        if owner[row] >= 0:
            first[owner[row]] = row
    host = np.arange(count) < labelled.host_groups
    cut = np.zeros(count, np.bool_)
    cut[labelled.unfinished] = True
    return Plan(
        rows=labelled.group[rows["row"].to_numpy()],
        activity=labelled.group,
        locate=labelled.spans.locate,
        labels=labelled.labels,
        parent=labelled.parent,
        input=first,
        opened=host,
        closed=host & ~cut,
        cut=cut,
        how="annotation",
    )


def from_segments(
    table: LabelTable, activity: Activity, submission: Submission, rows: pd.DataFrame, graph: Bools, inputs: Inputs
) -> Plan:
    """The plan without labels. Profiler steps fence all threads, named ranges their own."""
    fences = segments.fences(table.of(("profiler",), USER), table.of(("word",), USER))
    found = segments.segment(rows, graph[rows["row"].to_numpy()], inputs, fences)
    by_call = pd.Series(found.group, index=rows["call"].to_numpy())
    spread = activity.table["call"].map(by_call).fillna(MISSING).to_numpy(np.int64)
    return Plan(
        rows=found.group,
        activity=between(spread, activity, submission),
        locate=found.locate,
        labels=(None,) * found.groups,
        parent=(MISSING,) * found.groups,
        input=found.input,
        opened=found.opened,
        closed=found.closed,
        cut=np.zeros(found.groups, np.bool_),
        how=found.how,
    )
