"""From executions of a phase to changes of its step model.

The model groups kernels by name; a change often touches only some executions of a name (the cache copies among all
`cat` kernels). `split` gives those rows of their own, so that the model's operations apply to them and to nothing else.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.forecast import Change, StepModel
from traceanalyzer.findings.subject import Bools, Floats, PhaseSubject

MINIMAL_KERNEL_NS = 2_000.0
"""What a kernel takes however little it does (method: advice, fusion)."""

QUEUED_IDLE = ("idle_latency", "idle_unknown")
"""Idle time between kernels that were queued."""

_BY_TIME = ("duration_ns", "hidden_ns")
_BY_COUNT = ("count", "fixed_ns")
_BY_WORK = ("compute_ns", "memory_ns", "flops", "bytes", "weight_bytes", "kv_bytes")
_KEYS = ["name", "category", "dtype", "known"]

Ints = npt.NDArray[np.int64]


def split(subject: PhaseSubject, part: Ints) -> tuple[StepModel, Ints]:
    """The subject's model with the executions of each part (1, 2, ...; 0: the rest) in rows of their own.

    Args:
        part: one number per row of the subject.

    Returns:
        The model, of the same step time and work as before, and the part of each of its rows.
    """
    model = subject.model
    rows = _keyed(subject.rows).assign(part=part, count=1.0, duration_ns=subject.duration)
    keys = pd.MultiIndex.from_frame(_keyed(model.rows)[_KEYS])
    left = {column: np.ones(len(model.rows)) for column in (*_BY_TIME, *_BY_COUNT, *_BY_WORK)}
    pieces, parts = [], []
    for number in range(1, int(part.max(initial=0)) + 1):
        shares = _shares(rows, number, keys)
        chosen = shares["count"] > 0
        piece = model.rows[chosen].copy()
        for column, share in shares.items():
            piece[column] = piece[column].to_numpy(np.float64) * share[chosen]
            left[column] -= share
        piece["tensor_compute_ns"] = piece["tensor_compute_ns"].to_numpy(np.float64) * shares["flops"][chosen]
        pieces.append(piece)
        parts.append(np.full(len(piece), number, np.int64))
    rest = model.rows.assign(**{c: model.rows[c].to_numpy(np.float64) * np.maximum(s, 0.0) for c, s in left.items()})
    rest["tensor_compute_ns"] = rest["tensor_compute_ns"].to_numpy(np.float64) * np.maximum(left["flops"], 0.0)
    table = pd.concat([rest, *pieces], ignore_index=True)
    return replace(model, rows=table), np.concatenate([np.zeros(len(rest), np.int64), *parts])


def _keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the keys by which the model groups them, as comparable text and numbers."""
    known = rows["compute_ns"].notna() & rows["memory_ns"].notna()
    return rows.assign(dtype=rows["dtype"].fillna("").astype(str), category=rows["category"].astype(str), known=known)


def _shares(rows: pd.DataFrame, number: int, keys: pd.MultiIndex) -> dict[str, Floats]:
    """Per row of the model the share of its count, time and work that one part holds."""
    columns = ["count", "duration_ns", *_BY_WORK]
    whole = rows.groupby(_KEYS)[columns].sum()
    mine = rows[rows["part"] == number].groupby(_KEYS)[columns].sum()
    mine = mine.reindex(whole.index).fillna(0.0)
    ratio = (mine / whole.where(whole != 0.0)).reindex(keys).fillna(0.0)
    by_count = ratio["count"].to_numpy(np.float64)
    shares = {column: ratio["duration_ns"].to_numpy(np.float64) for column in _BY_TIME}
    shares |= dict.fromkeys(_BY_COUNT, by_count)
    return shares | {column: ratio[column].to_numpy(np.float64) for column in _BY_WORK}


def touching(subject: PhaseSubject, rows: Bools) -> tuple[StepModel, Bools]:
    """The model with some executions in rows of their own, and which of its rows those are."""
    model, part = split(subject, rows.astype(np.int64))
    return model, part == 1


def shortened(subject: PhaseSubject, rows: Bools, duration_ns: Floats) -> StepModel:
    """The step in which some executions take other times, never longer than they do.

    Args:
        duration_ns: one per row of the subject.
    """
    model, mine = touching(subject, rows)
    new = np.fmin(duration_ns, subject.duration)
    old = subject.time(rows)
    return model.scaled(mine, subject.per_step(new, rows) / old) if old else model


def merged(subject: PhaseSubject, gone: Bools, stays: Bools, stays_ns: Floats) -> StepModel:
    """The step in which some kernels are gone, and others do their work in another time.

    What was idle right before a kernel that is gone is gone with it. Where the host was late, the model says how much
    the launches that are gone had cost.

    Args:
        gone: rows whose kernels and launches go.
        stays: rows that do the work of those.
        stays_ns: the new time of every row that stays, one per row of the subject.
    """
    model, part = split(subject, np.where(gone, 1, np.where(stays, 2, 0)))
    old = subject.time(stays)
    model = model.without(part == 1)
    model = model.scaled(part == 2, subject.per_step(stays_ns, stays) / old) if old else model
    running = gone & subject.launching & ~subject.late
    model = less_idle(model, subject.per_step(subject.gap_before, running), "idle_launch")
    return less_idle(model, subject.per_step(subject.gap_before, gone & ~subject.launching), *QUEUED_IDLE)


def less_idle(model: StepModel, ns: float, *buckets: str) -> StepModel:
    """The step with so much less idle time, taken from the buckets in order as far as they hold it."""
    idle: dict[str, float] = {}
    for bucket in buckets:
        taken = min(ns, model.idle_ns.get(bucket, 0.0))
        idle[bucket] = model.idle_ns.get(bucket, 0.0) - taken
        ns -= taken
    return model.apply(Change(model.durations, idle))
