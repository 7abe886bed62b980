"""The result types of this package, and the words for phases.

What could be wrong with it: nothing is computed here; a column that is missing or misnamed breaks every later stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.trace.tables import Note

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PHASES = ("prefill", "decode", "mixed", "draft", "encoder", "capture", "warmup", "other")
NOT_EXECUTED = frozenset({"capture", "warmup"})
"""Phases whose rows are no forward pass of a run: they do not count as steps."""

FACTS = (
    "tokens",
    "prefill_tokens",
    "decode_tokens",
    "sequences",
    "prefill_sequences",
    "decode_sequences",
    "context_sum",
    "query_context_sum",
    "padded_tokens",
)
"""The countable facts of a step, float64 with NaN where unknown."""

Workload = Literal["generation", "prefill_only", "training", "capture", "unknown"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the whole trace is a recording of.

    `engine` is vLLM, SGLang, ATOM, ... where something in the trace says so. `graph_mode` is `full` (one graph launch
    replays a step), `piecewise` (several do), `eager` (none), None on a CPU or without steps; it is said of the decode
    steps where there are any. `layers` is the number of transformer layers one step runs.
    """

    workload: Workload
    engine: str | None
    graph_mode: str | None
    layers: int | None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Steps:
    """The forward passes of one trace.

    `table` has one row per step and device, sorted by (device, start_ns), `step` equal to the row number:
    step i32, device i32, phase, confidence f64 (0..1, in that phase), evidence (tuple of short strings), start_ns and
    end_ns i64 (first activity's start, last one's end), the columns of `FACTS`, parent_step i32 (the step a draft pass
    belongs to, else MISSING) and complete (recorded whole). `context_sum` is the sum of key lengths over the sequences,
    `query_context_sum` the sum of query length x key length, not halved for causality; `padded_tokens` counts tokens
    that are only padding, on top of `tokens`.

    `activity_step` maps every row of `Activity.table` to its step, MISSING where it belongs to none. `labelled` holds
    thread, start_ns and end_ns of every host range that a label calls a step, whatever was recorded of it.
    """

    table: pd.DataFrame
    activity_step: npt.NDArray[np.int32]
    facts: RunFacts
    labelled: pd.DataFrame
