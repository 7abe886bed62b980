"""Gives replayed kernels the work of a sequence they line up with: rung one of the ladder.

A step takes all it takes from one reference. Attention had another context there: its op, with heads and types, is
looked at anew as if it had run in the step. What could be wrong: see `align`, and `reference.fitting` for the size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from traceanalyzer.analysis import work as works
from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.attribution import launches_of, replayed
from traceanalyzer.analysis.kernels import HELPER_ROLES
from traceanalyzer.analysis.replay.align import Alignment, Refused, align
from traceanalyzer.analysis.replay.fill import Answer, with_work
from traceanalyzer.analysis.replay.recorded import Recorded
from traceanalyzer.analysis.replay.reference import (
    GRID_AXES,
    SOURCE,
    Evidence,
    Ints,
    Reference,
    evidence_of_steps,
    fitting,
    references,
    works_of,
)
from traceanalyzer.analysis.replay.sequence import sequences
from traceanalyzer.analysis.replay.unnamed import with_names
from traceanalyzer.analysis.work.columns import FLOATS, Bools
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import MISSING, Note

_SIZES = ("heads", "kv_heads", "head_dim", "batch", "q_len")
_FEWEST = 8
"""A step has at least so many kernels without an op, or it was not replayed."""
_MOST_TRIES = 2000
"""Pairs of a sequence and a reference that are looked at: replays are few sequences, and each takes milliseconds."""
_TRIES_OF_UNNAMED = 100
"""What one without names counts as: all its works are worked out."""
_MOST_ROWS = 100_000
"""Attention kernels that are worked out at a time."""


@dataclass
class _Matched:
    """Steps that line up with a reference: a line of rows per step, the place of each column in the reference."""

    steps: list[Ints] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    position: list[Ints] = field(default_factory=list)


def fill_matched(
    recorded: Recorded, beside: Sequence[Evidence], windows: Sequence[int | None], hidden: int | None
) -> tuple[pd.DataFrame, tuple[Note, ...]]:
    """The work table with the work of kernels that line up with an eager step of the trace, or with evidence beside it.

    Args:
        recorded: the trace.
        beside: what other files hold, see `capture.evidence_of`.
        windows: of each layer of the model its window, None without one; empty where the model is not known.
        hidden: its hidden size, None where unknown.

    Returns:
        The table, and which files were used, and which do not fit.
    """
    work = recorded.work
    wanted = _wanted(recorded)
    if not len(wanted):
        return work, _notes({}, (), {one.file: "no replayed kernel lacks its work" for one in beside}, beside)
    own = evidence_of_steps(recorded)
    known = [reference for evidence in (own, *beside) for reference in references(evidence)]
    unnamed = [one for one in beside if not one.named]
    if not known and not unnamed:
        return work, ()
    finder = _Finder(known, unnamed, hidden)
    found = _match(recorded, wanted, finder)
    answer = Answer()
    for place, matched in found.items():
        _take(known[place], matched, recorded.unknown, answer)
        _take_attention(known[place], matched, recorded.unknown, recorded.steps, windows, answer)
    return with_work(work, answer, SOURCE), _notes(found, known, finder.refused, beside)


def _match(recorded: Recorded, wanted: Ints, finder: _Finder) -> dict[int, _Matched]:
    """The wanted steps by the reference they line up with (its place among those of the finder)."""
    trace, table = recorded.trace, recorded.activity.table
    by_step = recorded.steps.set_index("step")
    size = by_step["tokens"] + by_step["padded_tokens"].fillna(0.0)
    kernel = table["kernel"].to_numpy(np.int64)
    op = table["op"].to_numpy()
    in_graph = replayed(trace, launches_of(trace))
    found: dict[int, _Matched] = {}
    for alike in sequences(recorded, wanted):
        rows = alike.rows[:, op[alike.rows[0]] < 0]
        ran = trace.kernels.iloc[kernel[rows[0]]]
        names = [trace.text(code) for code in ran["name"].tolist()]
        grids = ran[list(GRID_AXES)].to_numpy(np.int64)
        tokens = size.reindex(alike.steps).to_numpy(np.float64)
        padded = (by_step["padded_tokens"].reindex(alike.steps) > 0).to_numpy()
        for count in np.unique(tokens).tolist():  # NaN comes once
            same = np.isnan(tokens) if np.isnan(count) else tokens == count
            place, aligned = finder.best(names, grids, count)
            for pads in (False, True):
                these = same & (padded == pads)
                if aligned is not None and these.any():
                    matched = found.setdefault(place, _Matched())
                    matched.steps.append(alike.steps[these])
                    matched.rows.append(rows[these])
                    # what is launched beside the graph runs over the tokens alone, without padding
                    inside = in_graph[kernel[rows[0]]] | (not pads)
                    matched.position.append(np.where(inside, aligned.position, MISSING))
    return found


def _wanted(recorded: Recorded) -> Ints:
    """Steps with several kernels that have neither an op nor work."""
    bare = recorded.in_steps & recorded.unknown & (recorded.activity.table["op"].to_numpy() < 0)
    numbers, count = np.unique(recorded.activity_step[bare], return_counts=True)
    return numbers[count >= _FEWEST].astype(np.int64)


@dataclass
class _Finder:
    """Finds the reference of a sequence. `refused`: why a file's references do not fit; `left`: how many to try yet."""

    known: list[Reference]
    unnamed: Sequence[Evidence]
    hidden: int | None
    refused: dict[str, str] = field(default_factory=dict)
    left: int = _MOST_TRIES

    def best(self, names: Sequence[str], grids: Ints, tokens: float) -> tuple[int, Alignment | None]:
        """The reference that covers most of a sequence, and how; (MISSING, None) where none does, or no single size."""
        self.known.extend(self._of_as_many(names, grids, tokens))
        fits = {id(one) for one in fitting(self.known, tokens)}
        aligned: list[tuple[int, Alignment]] = []
        for place, reference in enumerate(self.known):
            file = reference.evidence.file
            if id(reference) not in fits:
                self.refused.setdefault(file, f"it has no graph for {tokens:g} tokens")
            elif not _of_size(reference, self.hidden):
                self.refused[file] = f"it is of a model whose hidden size is not {self.hidden}"
            elif self.left > 0:
                self.left -= 1
                found = align(names, grids, reference)
                if isinstance(found, Refused):
                    self.refused[file] = found.why
                else:
                    aligned.append((place, found))
        if len({self.known[place].tokens for place, _ in aligned}) > 1:
            self.refused[self.known[aligned[0][0]].evidence.file] = "graphs of several sizes run the same kernels"
            return MISSING, None
        return max(aligned, key=lambda one: (one[1].covered, -one[0]), default=(MISSING, None))

    def _of_as_many(self, names: Sequence[str], grids: Ints, tokens: float) -> list[Reference]:
        """References of captured graphs without names that a sequence may be a replay of."""
        out = []
        for evidence in self.unnamed:
            parts = [one for one in evidence.parts if len(one.rows) == len(names)]
            sizes = [one.tokens for one in parts if one.tokens is not None and tokens <= one.tokens < 2 * tokens]
            for part in parts:
                likely = part.tokens is None or np.isnan(tokens) or part.tokens == min(sizes, default=None)
                if likely and self.left > 0:
                    self.left -= _TRIES_OF_UNNAMED
                    found = with_names(evidence, part, names, grids)
                    if found is not None:
                        out.append(found)
            if not out:
                self.refused[evidence.file] = "no graph in it has as many kernels of these kinds in this order"
        return out


def _of_size(reference: Reference, hidden: int | None) -> bool:
    """Whether products of a reference take or give vectors of the model's hidden size, as two or more of a layer do."""
    products = [one for one in reference.works if one is not None and one.n is not None and one.k is not None]
    return hidden is None or not products or any(hidden in (one.n, one.k) for one in products)


def _take(reference: Reference, matched: _Matched, unknown: Bools, answer: Answer) -> None:
    """Add the works of a reference for the rows that have none."""
    distinct: dict[OpWork, int] = {}
    index = np.full(len(reference.works) + 1, MISSING, np.int64)
    for place, one in enumerate(reference.works):
        if one is not None and (one.flops is not None or one.bytes is not None):
            index[place] = len(answer.works) + distinct.setdefault(one, len(distinct))
    answer.works.extend(distinct)
    for rows, position in zip(matched.rows, matched.position, strict=True):
        done = np.broadcast_to(index[position], rows.shape)
        take = unknown[rows] & (done >= 0)
        answer.rows.append(rows[take])
        answer.done.append(done[take])


def _take_attention(
    reference: Reference, matched: _Matched, unknown: Bools, steps: pd.DataFrame, windows: Sequence[int | None],
    answer: Answer,
) -> None:  # fmt: skip
    """Add the work of attention: the ops of the reference, as if they had run in each of the matched steps."""
    evidence = reference.evidence
    own = evidence.work.iloc[reference.rows]
    attends = (own["category"] == "attention").to_numpy() & ~own["role"].isin(HELPER_ROLES).to_numpy()
    places = np.flatnonzero(attends & (evidence.activity.table["op"].to_numpy()[reference.rows] >= 0))
    if not len(places):
        return
    asked = np.concatenate([
        np.where(at >= 0, lines[:, at], MISSING)
        for lines, position in zip(matched.rows, matched.position, strict=True)
        for at in (_columns_of(position, places),)
    ])  # fmt: skip
    numbers = np.concatenate(matched.steps)
    count = max(_MOST_ROWS // len(places), 1)
    for first in range(0, len(numbers), count):
        part = slice(first, first + count)
        filled = _as_if(evidence, reference.rows[places], numbers[part], steps, windows)
        _take_filled(asked[part].ravel(), filled, unknown, answer)


def _take_filled(asked: Ints, filled: pd.DataFrame, unknown: Bools, answer: Answer) -> None:
    """Add the rows of a work table for the rows they were worked out for (MISSING: for none)."""
    take = (asked >= 0) & filled["bytes"].notna().to_numpy()
    take[take] = unknown[asked[take]]
    figures = filled[take]
    distinct, of = np.unique(figures[[*FLOATS, "estimated", *_SIZES]].fillna(-1.0).to_numpy(float), axis=0,
                             return_index=True, return_inverse=True)[1:]  # fmt: skip
    answer.rows.append(asked[take])
    answer.done.append(of.ravel().astype(np.int64) + len(answer.works))
    answer.works.extend(one for one in works_of(figures.iloc[distinct], same_context=True) if one is not None)


def _columns_of(position: Ints, places: Ints) -> Ints:
    """Where some places of a reference stand in a line, MISSING where they do not."""
    size = int(max(places.max(), position.max())) + 1
    column = np.full(size, MISSING, np.int64)
    has = np.flatnonzero(position >= 0)
    column[position[has]] = has
    found: Ints = column[places]
    return found


def _as_if(
    evidence: Evidence, rows: Ints, numbers: Ints, steps: pd.DataFrame, windows: Sequence[int | None]
) -> pd.DataFrame:
    """The work of some attention rows as if they had run in other steps: a row per step and attention row, in order."""
    table, trace = evidence.activity.table, evidence.trace
    many = np.tile(rows, len(numbers))
    op = table["op"].to_numpy(np.int64)[many]
    told = trace.ops.drop_duplicates(["name", "dims", "types"])  # what the cache is stored in
    ops = pd.concat([trace.ops.iloc[op], told], ignore_index=True)
    run = table.iloc[many].reset_index(drop=True).assign(op=np.arange(len(many)))
    blank = evidence.work.iloc[many].reset_index(drop=True).assign(**dict.fromkeys(FLOATS, np.nan))
    step = np.repeat(numbers, len(rows))
    return works.fill_attention(replace(trace, ops=ops), Activity(run, on_cpu=False), blank, steps, step, windows)


def _notes(
    found: Mapping[int, _Matched], known: Sequence[Reference], refused: Mapping[str, str], beside: Sequence[Evidence]
) -> tuple[Note, ...]:
    """Which of the files beside the trace were used, and why others were not."""
    used = {known[place].evidence.file for place in found}
    out = []
    for evidence in beside:
        if evidence.file in used:
            steps = sum(
                len(s) for place, m in found.items() if known[place].evidence.file == evidence.file for s in m.steps
            )
            out.append(Note("capture_used", "info", steps, evidence.file))
        elif evidence.given and evidence.file in refused:
            out.append(Note("capture_not_aligned", "warning", 1, f"{evidence.file}: {refused[evidence.file]}"))
    return tuple(out)
