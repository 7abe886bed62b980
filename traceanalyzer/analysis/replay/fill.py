"""Gives work to the kernels of steps that recorded shapes leave without any, from the description of the model.

A step is answered whole or not at all: `layers` has to account for every product, recorded shapes of some of its
kernels must be those of their roles, and no kind of kernel may have run faster than the card can. Recorded work is
never replaced. Steps of one sequence of kernels are taken apart once.

What could be wrong: weights of a small model that stay in a cache between steps are read faster than from memory; such
a step is refused though it fits. See `layers` for exchanges that cannot be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from traceanalyzer.analysis.devices import DeviceInfo
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.model.description import Description
from traceanalyzer.analysis.replay import checks
from traceanalyzer.analysis.replay.align import Refused
from traceanalyzer.analysis.replay.facts import captured_rows, facts_of
from traceanalyzer.analysis.replay.layers import arrange
from traceanalyzer.analysis.replay.parts import Part, parts, work_of
from traceanalyzer.analysis.replay.recorded import Recorded
from traceanalyzer.analysis.replay.sequence import Alike, sequences
from traceanalyzer.analysis.replay.sizes import Facts, Sizes, sizes_of
from traceanalyzer.analysis.work.columns import FLOATS, INTEGERS, Ints, columns, objects, spread
from traceanalyzer.analysis.work.measure import TENSOR_DTYPES
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import MISSING, Note

SOURCE = "model-config"
PHASES = ("prefill", "decode", "mixed")


@dataclass
class Answer:
    """Rows that got work: `done` is its index in `works`. `refused`: how many steps, by the reason."""

    works: list[OpWork] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    done: list[Ints] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def fill(
    recorded: Recorded, described: Description, on: Mapping[int, DeviceInfo]
) -> tuple[pd.DataFrame, tuple[Note, ...]]:
    """The work table with what the model's description tells of kernels without work.

    Args:
        recorded: the trace.
        described: what is known of the model.
        on: the devices, by their numbers.

    Returns:
        The table, and what could not be answered.
    """
    sizes = sizes_of(described)
    wanted = _wanted(recorded)
    if sizes is None or not len(wanted):
        return recorded.work, ()
    answer = Answer()
    by_step = recorded.steps.set_index("step")
    for alike in sequences(recorded, wanted):
        _answer(recorded, by_step, alike, sizes, on, answer)
    notes: tuple[Note, ...] = ()
    if answer.refused:
        why, _ = answer.refused.most_common(1)[0]
        notes = (Note("replay_refused", "warning", sum(answer.refused.values()), why),)
    return with_work(recorded.work, answer), notes


def _wanted(recorded: Recorded) -> Ints:
    """Steps in which a product or attention has no known work."""
    work, steps = recorded.work, recorded.steps
    heavy = work["category"].isin((*MATRIX_CATEGORIES, "attention")) & ~work["role"].isin(HELPER_ROLES)
    asking = heavy.to_numpy() & recorded.unknown & recorded.in_steps
    of = steps.loc[steps["phase"].isin(PHASES), "step"].to_numpy(np.int64)
    wanted: Ints = np.intersect1d(np.unique(recorded.activity_step[asking]), of)
    return wanted


def _answer(
    recorded: Recorded, steps: pd.DataFrame, alike: Alike, sizes: Sizes, on: Mapping[int, DeviceInfo], answer: Answer
) -> None:
    """One sequence: its layers, each step's facts, the work of every part, and the checks of all of it."""
    trace, table, work = recorded.trace, recorded.activity.table, recorded.work
    carriers, count = alike.carriers, len(alike.steps)
    decodes = bool((steps.loc[alike.steps, "phase"] == "decode").all())
    passed = arrange(carriers, sizes.config, decodes)
    if isinstance(passed, Refused):
        answer.refused[passed.why] += count
        return
    texts = [trace.text(code) for code in carriers.names]
    rows = alike.rows[:, carriers.at]
    dtypes = [None if word is None else str(word) for word in work["dtype"].to_numpy(object)[rows[0]]]
    own = checks.padded(sizes, texts)
    asked = parts(carriers, passed, own, texts, dtypes)
    captured = captured_rows(trace, table, alike, texts)
    kinds = list(dict.fromkeys(part for part in asked if part is not None))
    kind = np.array([MISSING if part is None else kinds.index(part) for part in asked], np.int64)
    works: list[OpWork] = []
    known: dict[tuple[int, Facts], int] = {}
    done = np.full(rows.shape, MISSING, np.int64)
    for line, step in enumerate(steps.loc[alike.steps].to_dict("records")):
        facts = facts_of(step, captured)
        if isinstance(facts, str):
            answer.refused[facts] += 1
        elif facts is not None:
            done[line] = np.array([*_works_in(kinds, own, facts, known, works), MISSING], np.int64)[kind]
    why = checks.contradicted(work, rows, passed, own) or checks.impossible(
        table, rows, done, works, asked, on.get(int(table["device"].to_numpy()[rows[0, 0]]))
    )
    if why is not None:
        answer.refused[why] += count
        return
    take = recorded.unknown[rows] & (done >= 0)
    answer.rows.append(rows[take])
    answer.done.append(done[take] + len(answer.works))
    answer.works.extend(works)


def _works_in(
    kinds: Sequence[Part], sizes: Sizes, facts: Facts, known: dict[tuple[int, Facts], int], works: list[OpWork]
) -> Iterator[int]:
    """The work of each part in a step, as an index into `works`, which grows by what is new; MISSING for none.

    Args:
        kinds: the distinct parts of a step.
        sizes, facts: of the model, and of the step.
        known: what has an index already, by the part's place among `kinds` and the facts that it follows.
        works: see above.
    """
    anywhere = facts.without_context
    for place, part in enumerate(kinds):
        key = (place, facts if part.follows_context else anywhere)
        found = known.get(key)
        if found is None:
            made = work_of(part, sizes, key[1])
            found = known[key] = MISSING if made is None else len(works)
            works.extend([] if made is None else [made])
        yield found


def with_work(work: pd.DataFrame, answer: Answer, source: str = SOURCE) -> pd.DataFrame:
    """The work table with an answer's rows filled in; nothing else changes."""
    if not answer.rows:
        return work
    rows, done = np.concatenate(answer.rows), np.concatenate(answer.done)
    each = columns(answer.works, np.arange(len(answer.works)), np.ones(len(answer.works)))
    out = work.copy(deep=False)
    for name in (*FLOATS, *INTEGERS, "estimated"):
        column = out[name].to_numpy(copy=True)
        column[rows] = each[name].to_numpy()[done]
        out[name] = column
    dtype = out["dtype"].to_numpy(object, copy=True)
    typed = spread([w.dtype for w in answer.works], done)
    bare = pd.isna(dtype[rows])
    dtype[rows[bare]] = typed[bare]
    out["dtype"] = objects(dtype)
    unit = out["tensor_core"].to_numpy(copy=True)
    several = (np.maximum(each["m"].to_numpy(np.int64), each["q_len"].to_numpy(np.int64)) > 1)[done]
    capable = several & pd.Series(dtype[rows], dtype=object).isin(TENSOR_DTYPES).to_numpy()
    unsure = unit[rows] < 0
    unit[rows[unsure]] = np.where(capable[unsure], 1, -1)
    out["tensor_core"] = unit
    said = out["source"].to_numpy(object, copy=True)
    said[rows] = source
    out["source"] = objects(said)
    return out
