"""Which labelled step each activity row belongs to: by the launch inside the label's host range, time comes last.

Labels nest. Where one step label holds exactly one other, both name the same work and become one step with the facts
of both; a draft pass inside a step stays a step of its own with the outer one as parent; a label around several steps
is no step. Work launched between two steps on the same thread belongs to the earlier one up to its last sampling
kernel: engines label the forward pass, and sample after it. After the last label of a thread, where layers begin again,
runs a pass that the window's end cut before its label was written: a step without a label, not complete. In a run whose
steps run layers outside their labels everywhere (drafts), that is no sign of one; and what holds more layers than any
labelled step is several passes, which nobody labelled: no step.

What could be wrong with it: a label whose kernels all lost their launches (window opened late) finds them only through
the profiler's GPU-side copy of the label, and only where that was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps.labels import Kind, Label, is_ours, merge, parse
from traceanalyzer.analysis.steps.model import Ints
from traceanalyzer.analysis.steps.submission import SpanMap, Submission
from traceanalyzer.trace.collector import number, section
from traceanalyzer.trace.tables import GPU_USER, MISSING, USER, Trace

TAIL = ("sampling", "gemm", "gemv", "softmax", "sort_scan", "reduction")
"""What still belongs to a step after its labelled range: the logits and the choice of the next token."""
_LAYERS = ("attention", "kv_cache", "rope", "moe", "ssm")
"""What no such tail runs, but every pass."""


@dataclass(frozen=True)
class LabelledSteps:
    """Steps that a label names, and passes that the window's end cut before their label was written (label None).

    `group` maps activity rows to an index into `labels`, MISSING outside.

    `parent[i]` is the group that group i is a draft pass of, or MISSING; `spans` are the host ranges, for other
    host events to be placed in; the first `host_groups` groups have such a range, the others only a label on the
    device. The range of the groups in `unfinished` was cut by the end of a window.
    """

    labels: tuple[Label | None, ...]
    parent: tuple[int, ...]
    group: Ints
    spans: SpanMap
    host_groups: int
    unfinished: Ints


@dataclass(frozen=True)
class LabelTable:
    """Every parsed annotation: `frame` holds thread, device, stream, kind, start_ns, end_ns, external_id, label, cut.

    `cut`: the window ended inside the label's range, as its recorder says.
    """

    frame: pd.DataFrame
    labels: tuple[Label, ...]

    def of(self, kinds: tuple[Kind, ...], side: int) -> pd.DataFrame:
        """The rows of some kinds of label on one side (USER: host, GPU_USER: device)."""
        chosen = [i for i, label in enumerate(self.labels) if label.kind in kinds]
        rows = self.frame["label"].isin(chosen) & (self.frame["kind"] == side)
        return self.frame[rows].reset_index(drop=True)


def read_labels(trace: Trace) -> LabelTable:
    """Parse the annotations of a trace, once per distinct name; those that are no label are left out."""
    table = trace.annotations
    codes = np.unique(table["name"].to_numpy(np.int64)).tolist()
    parsed = {code: parse(trace.text(code)) for code in codes}
    kept = {code: label for code, label in parsed.items() if label is not None}
    index = {code: i for i, code in enumerate(kept)}
    frame = table[table["name"].isin(list(kept))].reset_index(drop=True)
    frame = frame.assign(
        label=frame["name"].map(index).astype(np.int64), end_ns=frame["start_ns"] + frame["duration_ns"]
    )
    labels = tuple(kept.values())
    return LabelTable(frame.assign(cut=_cut(trace, frame, labels)), labels)


def _cut(trace: Trace, frame: pd.DataFrame, labels: tuple[Label, ...]) -> npt.NDArray[np.bool_]:
    """The recorder's own labels of steps that were not over when their window ended, or when it took no more.

    The last ones of the window, as many as its recorder counted: an engine's label around or inside one is cut with it.
    """
    out = np.zeros(len(frame), np.bool_)
    steps = frame["label"].isin([i for i, label in enumerate(labels) if is_ours(label)]) & (frame["kind"] == USER)
    start, end = frame["start_ns"], frame["end_ns"]
    never = np.iinfo(np.int64).max
    windows = [(one.metadata, one.start_ns, one.end_ns) for one in trace.windows] or [(trace.metadata, -never, never)]
    for metadata, opened, closed in windows:
        count = int(number(section(metadata.collector, "window"), "unfinished_steps") or 0)
        if count > 0:
            inside = np.flatnonzero(steps & (start >= opened) & (end <= closed))
            out[inside[np.argsort(end.to_numpy(np.int64)[inside], kind="stable")][-count:]] = True
    return out


def labelled_steps(
    table: LabelTable, activity: Activity, submission: Submission, category: pd.Categorical
) -> LabelledSteps | None:
    """Join activity to step labels; None where no step label has any.

    Args:
        table: the parsed annotations.
        activity, submission: the device work and where it was launched.
        category: the kernel category of each activity row.
    """
    host, device = table.of(("step", "capture"), USER), table.of(("step", "capture"), GPU_USER)
    if not len(host) and not len(device):
        return None
    labels, parents, owner = _nest(host, table.labels)
    spans, host_groups = SpanMap(host.assign(owner=owner)[owner >= 0]), len(labels)
    group = np.where(submission.known, spans.locate(submission.thread, submission.time_ns), MISSING)
    group = _from_device(device, host, owner, table, activity, group, labels, parents)
    group, cut = _cut_passes(group, submission, category, len(labels))
    group = _tails(group, submission, category)
    group = _single(group, len(labels), np.asarray(category.isin(_LAYERS)))
    group = between(group, activity, submission)
    if not (group >= 0).any():
        return None
    every = (*labels, *(None,) * cut)
    unfinished = np.unique(owner[host["cut"].to_numpy(np.bool_) & (owner >= 0)])
    return LabelledSteps(every, (*parents, *(MISSING,) * cut), group, spans, host_groups, unfinished)


def _nest(host: pd.DataFrame, labels: tuple[Label, ...]) -> tuple[list[Label], list[int], Ints]:
    """Turn nested host ranges into groups: (label of each group, its parent group, group of each range)."""
    outer = _parents(host)
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(outer):
        children.setdefault(parent, []).append(row)
    names = [labels[i] for i in host["label"].tolist()]
    out: list[Label] = []
    parents: list[int] = []
    owner = np.full(len(host), MISSING, np.int64)
    for row in np.lexsort((-host["end_ns"].to_numpy(), host["start_ns"].to_numpy())).tolist():
        if owner[row] >= 0:
            continue
        inner = [c for c in children.get(row, []) if names[c].phase != "draft"]
        if len(inner) > 1:
            continue  # a range around several steps
        group, label, chain = len(out), names[row], row
        owner[row] = group
        while len(inner) == 1:
            chain = inner[0]
            owner[chain], label = group, merge(label, names[chain])
            inner = [c for c in children.get(chain, []) if names[c].phase != "draft"]
        above = outer[row]
        out.append(label)
        parents.append(int(owner[above]) if above >= 0 and label.phase == "draft" else MISSING)
    return out, parents, owner


def _parents(host: pd.DataFrame) -> list[int]:
    """For each range the innermost one that encloses it on its thread, MISSING for none."""
    out = [MISSING] * len(host)
    for _, group in host.groupby("thread", sort=False):
        ordered = group.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
        stack: list[tuple[int, int]] = []
        for row, start, end in zip(ordered.index, ordered["start_ns"], ordered["end_ns"], strict=True):
            while stack and stack[-1][1] <= start:
                stack.pop()
            out[int(row)] = stack[-1][0] if stack else MISSING
            stack.append((int(row), int(end)))
    return out


def _from_device(
    device: pd.DataFrame, host: pd.DataFrame, owner: Ints, table: LabelTable, activity: Activity, group: Ints,
    labels: list[Label], parents: list[int],
) -> Ints:  # fmt: skip
    """Place rows that no host range placed by the profiler's copy of the label on their own device and stream.

    A copy belongs to the host range of the same external id; one without a host range adds a group of its own.
    """
    if not len(device) or not (group < 0).any():
        return group
    owners = dict(zip(_keys(host), owner.tolist(), strict=True))
    found: list[int] = []
    for key, label in zip(_keys(device), device["label"].tolist(), strict=True):
        if key not in owners or key[0] == MISSING:
            owners[key] = len(labels)
            labels.append(table.labels[label])
            parents.append(MISSING)
        found.append(owners[key])
    placed = device.assign(owner=found, thread=_lanes(device["device"], device["stream"]))
    rows = activity.table
    spans = SpanMap(placed[placed["owner"] >= 0])
    located = spans.locate(_lanes(rows["device"], rows["stream"]), rows["start_ns"].to_numpy(np.int64))
    return np.where(group >= 0, group, located)


def _keys(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """(external id, name) of each annotation."""
    return list(zip(frame["external_id"].tolist(), frame["name"].tolist(), strict=True))


def _lanes(device: pd.Series, stream: pd.Series) -> Ints:
    """One number per (device, stream)."""
    lanes: Ints = (device.to_numpy(np.int64) << 40) + stream.to_numpy(np.int64)
    return lanes


def _cut_passes(group: Ints, submission: Submission, category: pd.Categorical, groups: int) -> tuple[Ints, int]:
    """Give what runs from where layers begin again after a thread's last label a group of its own; how many those are.

    Args:
        groups: how many groups there are, which the new ones are counted from.
    """
    out, cut = group.copy(), 0
    layers, samples, embeds = (category.isin(kinds) for kinds in (_LAYERS, ("sampling",), ("embedding",)))
    for thread in np.unique(submission.thread[submission.known]).tolist():
        rows = np.flatnonzero(submission.thread == thread)
        rows = rows[np.argsort(submission.time_ns[rows], kind="stable")]
        placed = np.flatnonzero(group[rows] >= 0)
        if not len(placed):
            continue
        outside = np.flatnonzero(layers[rows] & (group[rows] < 0))
        later = outside[outside > placed[-1]]
        if not len(later) or ((outside > placed[0]) & (outside < placed[-1])).any():
            continue
        since = np.arange(placed[-1] + 1, later[0])
        sampled, looked_up = since[samples[rows[since]]], since[embeds[rows[since]]]
        # Before the sampling, a lookup may pick the rows that get logits; after it, only the next pass looks up.
        looked_up = looked_up[looked_up > sampled[-1]][:1] if len(sampled) else looked_up[-1:]
        begin = looked_up[0] if len(looked_up) else sampled[-1] + 1 if len(sampled) else later[0]
        out[rows[begin:]] = groups + cut
        cut += 1
    return out, cut


def _single(group: Ints, groups: int, layers: npt.NDArray[np.bool_]) -> Ints:
    """Leave out what holds more layers than any labelled step: several passes that no label tells apart."""
    count = np.bincount(group[(group >= 0) & layers], minlength=groups)
    several = np.flatnonzero(count > count[:groups].max(initial=0))
    return np.where(np.isin(group, several), MISSING, group)


def _tails(group: Ints, submission: Submission, category: pd.Categorical) -> Ints:
    """Give rows launched after a step's range, before the next, to that step up to its last sampling kernel."""
    out = group.copy()
    tail = category.isin(TAIL)
    for thread in np.unique(submission.thread[submission.known]).tolist():
        rows = np.flatnonzero(submission.thread == thread)
        rows = rows[np.argsort(submission.time_ns[rows], kind="stable")]
        if not (out[rows] >= 0).any():
            continue
        position = np.arange(len(rows))
        inside = np.maximum.accumulate(np.where(out[rows] >= 0, position, -1))
        previous = np.where(inside >= 0, out[rows][inside], MISSING)
        gap = (out[rows] < 0) & (inside >= 0)
        last_tail = np.full(len(rows), -1, np.int64)
        tails = position[gap & tail[rows]]
        last_tail[inside[tails]] = tails  # in order, so the last one stays
        take = gap & (position <= last_tail[inside])
        out[rows[take]] = previous[take]
    return out


def between(group: Ints, activity: Activity, submission: Submission) -> Ints:
    """Rows without a launch that lie between two kernels of one step on the same stream belong to that step.

    A stream runs in order, so nothing else can have been put there.
    """
    if submission.known.all():
        return group
    table, out = activity.table, group.copy()
    frame = pd.DataFrame({"lane": _lanes(table["device"], table["stream"]), "group": group})
    placed = frame["group"].where(frame["group"] >= 0)
    before = placed.groupby(frame["lane"]).ffill()
    after = placed.groupby(frame["lane"]).bfill()
    take = (group < 0) & ~submission.known & (before == after).to_numpy() & before.notna().to_numpy()
    out[take] = before.to_numpy()[take].astype(np.int64)
    return out
