"""Sequences of kernels whose work is known, to line replays of graphs up with: captures of graphs, and eager steps.

A reference had another context than the replay: of attention only heads and sizes are taken from it, and what grows
with the context is left out. What could be wrong: an eager step that ran other sizes than the captured graph under the
same kernel names; the grids tell where they are recorded, the number of tokens where not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.replay.recorded import Recorded
from traceanalyzer.analysis.work.columns import FLOATS, INTEGERS
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import Trace

Ints = npt.NDArray[np.int64]

GRID_AXES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
SOURCE = "graph-match"
"""The source of work that comes from a reference."""
_OWNED = 0.9
"""At least this share of an eager step's kernels have an op: it was launched, not replayed."""
_WORKED = 0.5
"""At least this share of its kernels have a known work, or there were no shapes to speak of."""
_MOST_STEPS = 64
"""Eager steps of different sequences that are kept."""


@dataclass(frozen=True)
class Part:
    """One sequence of kernels of a trace: its name for the reader, its tokens (padding included), its activity rows."""

    name: str
    tokens: int | None
    rows: Ints


@dataclass(frozen=True)
class Evidence:
    """A trace with recorded shapes, its activity and work, and which parts of it can be replayed elsewhere.

    `file` is the file beside the analysed trace that it was read from; "" where it is that trace itself. `given`: the
    user named it, so that he is told where it does not fit. `named`: the kernels have names; a capture recorded on CUDA
    has only their number and their ops, see `unnamed`.
    """

    trace: Trace
    activity: Activity
    work: pd.DataFrame
    parts: tuple[Part, ...]
    file: str
    given: bool = True
    named: bool = True


@dataclass(frozen=True)
class Reference:
    """A sequence of kernels of one model (no copies, no fills), in order, with the work of each.

    Args:
        name: what it is, for the reader: a captured graph, or a step.
        tokens: how many it was run or captured for (the padded number), None where unknown.
        names: the kernels' names.
        grids: one row per kernel, the columns of `GRID_AXES`, MISSING where not recorded.
        works: one per kernel, None where unknown. The work of attention holds heads and head size, never FLOPs or
            bytes: a reference had another context.
        evidence: where it was recorded.
        rows: its rows in the activity of the evidence.
    """

    name: str
    tokens: int | None
    names: tuple[str, ...]
    grids: Ints
    works: tuple[OpWork | None, ...]
    evidence: Evidence
    rows: Ints


def references(evidence: Evidence) -> list[Reference]:
    """The parts of some evidence as references, each different sequence once; none where kernels have no names."""
    if not evidence.named:
        return []
    trace, table = evidence.trace, evidence.activity.table
    found: dict[tuple[object, ...], Reference] = {}
    for part in evidence.parts:
        recorded = trace.kernels.iloc[table["kernel"].to_numpy(np.int64)[part.rows]]
        names = tuple(trace.text(code) for code in recorded["name"].tolist())
        grids = recorded[list(GRID_AXES)].to_numpy(np.int64)
        key = part.tokens, names, grids.tobytes()
        if key not in found:
            works = works_of(evidence.work.iloc[part.rows])
            tokens = _of_products(works) or part.tokens
            found[key] = Reference(part.name, tokens, names, grids, works, evidence, part.rows)
    return list(found.values())


def _of_products(works: Iterable[OpWork | None]) -> int | None:
    """The tokens that most products with weights run over; None where there is none."""
    counts = [one.m for one in works if one is not None and one.m is not None and one.weight_bytes is not None]
    return max(set(counts), key=counts.count) if counts else None


def evidence_of_steps(recorded: Recorded, file: str = "") -> Evidence:
    """The eager steps of a trace with recorded shapes, in order of time.

    Args:
        recorded: the trace.
        file: see `Evidence`.
    """
    table, work, activity_step = recorded.activity.table, recorded.work, recorded.activity_step
    parts: list[Part] = []
    rows = np.flatnonzero(recorded.in_steps)
    if len(rows):
        rows = rows[np.lexsort((table["start_ns"].to_numpy()[rows], activity_step[rows]))]
        step = activity_step[rows]
        owned = pd.Series(table["op"].to_numpy()[rows] >= 0).groupby(step).mean()
        worked = pd.Series(work["bytes"].notna().to_numpy()[rows]).groupby(step).mean()
        for number in owned.index[(owned >= _OWNED) & (worked >= _WORKED)].tolist()[:_MOST_STEPS]:
            inside = slice(*np.searchsorted(step, [number, number + 1]))
            parts.append(Part(f"step {number}", _tokens(recorded.steps, number), rows[inside]))
    return Evidence(recorded.trace, recorded.activity, work, tuple(parts), file)


def works_of(work: pd.DataFrame, same_context: bool = False) -> tuple[OpWork | None, ...]:
    """The work of each row of a work table, equal ones as one object; None where neither FLOPs nor bytes are known.

    Args:
        work: the rows.
        same_context: they ran over the context that they are asked for; else what depends on it is left out.
    """
    columns = ["category", "role", "dtype", "estimated", *FLOATS, *INTEGERS]
    distinct: dict[tuple[object, ...], OpWork | None] = {}
    out = []
    for row in work[columns].astype(object).itertuples(index=False, name=None):
        key = tuple(None if value != value else value for value in row)
        if key not in distinct:
            distinct[key] = _work(dict(zip(columns, key, strict=True)), same_context)
        out.append(distinct[key])
    return tuple(out)


def _work(row: dict[str, object], same_context: bool) -> OpWork | None:
    known: dict[str, Any] = {name: value for name in INTEGERS if isinstance(value := row[name], int) and value >= 0}
    known |= {name: value for name in FLOATS if isinstance(value := row[name], float)}
    category, role, dtype = str(row["category"]), str(row["role"]), row["dtype"]
    found = OpWork(
        model=SOURCE,
        category=category,
        role=role,
        dtype=None if dtype is None else str(dtype),
        estimated=bool(row["estimated"]),
        **known,
    )
    if category == "attention" and role not in HELPER_ROLES and not same_context:
        unknown: dict[str, Any] = dict.fromkeys(FLOATS)
        return replace(found, estimated=False, kv_len=None, **unknown) if found.heads is not None else None
    activations = category in MATRIX_CATEGORIES and found.weight_bytes is None and (found.batch or 1) > 1
    unknown_work = found.flops is None and found.bytes is None
    return None if unknown_work or (activations and not same_context) else found


def _tokens(steps: pd.DataFrame, number: int) -> int | None:
    """The tokens a step ran over, its padding included; None where unknown."""
    row = steps.loc[steps["step"] == number].iloc[0]
    tokens, padding = float(row["tokens"]), float(row["padded_tokens"])
    return None if np.isnan(tokens) else int(tokens + (0.0 if np.isnan(padding) else padding))


def fitting(references: Sequence[Reference], tokens: float | None) -> list[Reference]:
    """The references that a step over so many tokens may be a replay of, the likeliest first.

    An engine replays the smallest captured graph that holds a batch; one that holds twice as many tokens is another
    one's. Where the tokens are unknown on either side, all remain.
    """
    if tokens is None or np.isnan(tokens):
        return list(references)
    sizes = [r.tokens for r in references if r.tokens is not None and tokens <= r.tokens < 2 * tokens]
    smallest = min(sizes, default=None)
    return [r for r in references if r.tokens == smallest and smallest is not None] + [
        r for r in references if r.tokens is None
    ]
