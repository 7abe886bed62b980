"""Two-batch overlap: a step cut in two micro-batches, whose layers run on two streams at the same time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.lines import device
from tests.analysis.steps.factory import MISSING, Recording
from traceanalyzer.analysis import ledger, timeline
from traceanalyzer.analysis.steps import find
from traceanalyzer.analysis.steps.model import Steps

ONE, OTHER = 7, 20
LAYERS, SEQUENCES = 4, 8
PER_STEP = 1 + 2 * LAYERS * 6 + 2
"""Kernels of one step: lookup, two times four layers of six, lm_head, argmax."""

GENERATION = [(64, 64), *[(1, 65 + i) for i in range(4)]]
"""(q, k) of each sequence, step by step."""


def meet(r: Recording) -> None:
    """Each of the two streams waits for the other one."""
    r.free[0, ONE] = r.free[0, OTHER] = max(r.free.get((0, ONE), 0), r.free.get((0, OTHER), 0))


def step(r: Recording, q: int, k: int, ids: bool = True, shapes: bool = True, turns: bool = False) -> None:
    """One step: tokens looked up together, half of the sequences on each stream, logits together.

    `turns`: a stream begins only when the other one has finished its layer.
    """
    op = r.op("aten::embedding", [[32000, 512], [SEQUENCES, q], [], [], []]) if ids else MISSING
    r.kernel("embedding", op=op)
    meet(r)
    sizes = {"q": q, "k": k, "batch": SEQUENCES // 2} if shapes else {}
    for _ in range(LAYERS):
        for stream in (ONE, OTHER):
            r.layer(SEQUENCES * q // 2, stream=stream, shapes=shapes, duration=20_000, **sizes)
            if turns:
                meet(r)
    meet(r)
    r.gemm(*((SEQUENCES, 32000, 512) if shapes else (MISSING, MISSING, MISSING)))
    r.kernel("sampling", "argmax")


def generation(labelled: bool = False, **more: bool) -> Recording:
    r = Recording()
    for q, k in GENERATION:
        words = f"tokens={SEQUENCES * q} seqs={SEQUENCES} ctx={SEQUENCES * k} qk={SEQUENCES * q * k}"
        name = f"ta.step[{'prefill' if q > 1 else 'decode'} {words}]"
        with r.annotate(name if labelled else "aten::nothing"):
            step(r, q, k, **more)
    return r


def is_the_generation(steps: Steps) -> None:
    table = steps.table
    assert table["phase"].tolist() == ["prefill", *["decode"] * 4]
    assert table["complete"].all()
    assert table["tokens"].tolist() == [SEQUENCES * q for q, _ in GENERATION]
    assert table["sequences"].tolist() == [SEQUENCES] * 5
    assert table["context_sum"].tolist() == [SEQUENCES * k for _, k in GENERATION]
    assert steps.facts.layers == LAYERS


@pytest.mark.parametrize(
    "told",
    [{"labelled": True}, {"labelled": True, "ids": False}, {"labelled": True, "ids": False, "shapes": False}, {}],
    ids=["labels", "labels, no ids", "labels alone", "ids and shapes"],
)
def test_a_step_on_two_streams_is_one_step(told: dict[str, bool]) -> None:
    steps = find(*generation(**told).build())
    is_the_generation(steps)
    assert np.bincount(steps.activity_step).tolist() == [PER_STEP] * 5


def test_the_micro_batches_of_a_step_add_up_where_shapes_alone_tell() -> None:
    is_the_generation(find(*generation(ids=False).build()))


def test_streams_that_take_turns_hold_different_layers() -> None:
    """Nothing runs at the same time: the layers of one pass, sent to one stream and the other."""
    steps = find(*generation(labelled=True, turns=True).build())
    assert steps.facts.layers == 2 * LAYERS
    assert len(steps.table) == 5


def test_attention_on_a_stream_of_its_own_is_no_micro_batch() -> None:
    r = Recording()
    for q, k in GENERATION:
        r.kernel("embedding", op=r.op("aten::embedding", [[32000, 512], [SEQUENCES, q], [], [], []]))
        for _ in range(LAYERS):
            r.layer(SEQUENCES * q, q=q, k=k, batch=SEQUENCES, duration=20_000)
            r.kernel("attention", q_len=q, kv_len=k, batch=SEQUENCES, stream=OTHER, duration=90_000)
        r.gemm(SEQUENCES, 32000, 512)
        r.kernel("sampling", "argmax")
    assert find(*r.build()).table["tokens"].tolist() == [SEQUENCES * q for q, _ in GENERATION]


def test_the_busy_time_of_overlapping_streams_counts_once() -> None:
    trace, activity, work = generation().build()
    steps = find(trace, activity, work)
    unknown = dict.fromkeys(("flops", "bytes", "weight_bytes", "kv_bytes"), np.nan)
    work = work.assign(dtype=None, tensor_core=0, source="none", **unknown)
    line = timeline.build(trace, device(), activity.table, work, steps.table, steps.activity_step)
    running = np.zeros(line.end_ns // 100, np.bool_)  # every time here is a whole number of 100 ns
    starts, durations = (activity.table[name].to_numpy() // 100 for name in ("start_ns", "duration_ns"))
    for start, duration in zip(starts.tolist(), durations.tolist(), strict=True):
        running[start : start + duration] = True
    assert line.steps["busy_ns"].sum() == 100 * int(running.sum())
    assert line.steps["busy_ns"].sum() < 0.7 * activity.table["duration_ns"].sum()
    assert (line.steps["busy_ns"] <= line.steps["duration_ns"]).all()
    spent = ledger.account(line).table.groupby("phase")["ns"].sum()
    assert set(spent.index) == {"prefill", "decode"}
    assert spent.sum() == line.span_ns
