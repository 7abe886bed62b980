"""Several threads or several devices in one process: each pass found once, each with the layers of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.analysis.steps.factory import Recording
from traceanalyzer.analysis.steps import find
from traceanalyzer.analysis.steps.model import Steps

PER_PASS = 1 + 4 * 6 + 2
"""Kernels of one pass: lookup, four layers of six, lm_head, argmax."""


def staggered(r: Recording, passes: Sequence[Sequence[tuple[int, int]]], places: Sequence[dict[str, int]]) -> None:
    """Threads that take turns in the middle of their passes.

    Args:
        passes: for each pass, (q, k) of each thread.
        places: thread, device and stream of each thread.
    """
    started: list[tuple[int, int, dict[str, int]]] = []

    def finish() -> None:
        q, k, place = started.pop(0)
        r.forward(q, 1, layers=2, q=q, k=k, batch=1, **place)

    for lengths in passes:
        for (q, k), place in zip(lengths, places, strict=True):
            r.forward(q, None, layers=2, ids=[1, q], q=q, k=k, batch=1, **place)
            started.append((q, k, place))
            if len(started) == len(places):
                finish()
    while started:
        finish()


def found(steps: Steps, **where: int) -> Any:
    table = steps.table
    for column, value in where.items():
        table = table[table[column] == value]
    return table


GENERATION = [(32, 32), (1, 33), (1, 34), (1, 35)]


def test_two_replicas_in_one_process():
    r = Recording()
    other = [(q, k + 10 * (q == 1)) if q == 1 else (q + 10, k + 10) for q, k in GENERATION]
    places = [{"thread": 1, "device": 0}, {"thread": 2, "device": 1}]
    staggered(r, list(zip(GENERATION, other, strict=True)), places)
    steps = find(*r.build())
    for device, prompt in ((0, 32), (1, 42)):
        table = found(steps, device=device)
        assert table["phase"].tolist() == ["prefill", "decode", "decode", "decode"]
        assert table["tokens"].tolist() == [prompt, 1, 1, 1]
        assert table["context_sum"].tolist() == [prompt, prompt + 1, prompt + 2, prompt + 3]
        assert table["complete"].all()
    assert np.bincount(steps.activity_step).tolist() == [PER_PASS] * 8
    assert steps.facts.layers == 4


def test_two_requests_side_by_side_on_one_device():
    r = Recording()
    places = [{"thread": 1, "stream": 7}, {"thread": 2, "stream": 20}]
    staggered(r, [(step, step) for step in GENERATION], places)
    trace, activity, work = r.build()
    steps = find(trace, activity, work)
    stream = trace.kernels["stream"].to_numpy()
    for number in (7, 20):
        mine = np.unique(steps.activity_step[stream == number])
        table = steps.table.iloc[mine]
        assert table["phase"].tolist() == ["prefill", "decode", "decode", "decode"]
        assert table["context_sum"].tolist() == [32, 33, 34, 35]
        assert table["complete"].all()
    assert np.bincount(steps.activity_step).tolist() == [PER_PASS] * 8
    assert steps.facts.layers == 4


def test_fixed_caches_of_two_threads_count_up_each_for_itself():
    r = Recording()
    places = [{"thread": 1, "stream": 7}, {"thread": 2, "stream": 20}]
    staggered(r, [((37, 128), (50, 128)), *[((1, 128), (1, 128))] * 3], places)
    trace, activity, work = r.build()
    steps = find(trace, activity, work)
    stream = trace.kernels["stream"].to_numpy()
    contexts = [steps.table["context_sum"].iloc[np.unique(steps.activity_step[stream == s])].tolist() for s in (7, 20)]
    assert contexts == [[37, 38, 39, 40], [50, 51, 52, 53]]


def test_a_pool_of_threads_serves_one_sequence():
    """No two passes at a time: whichever thread runs a pass, the context of the fixed cache grows by it."""
    r = Recording()
    for q, thread in ((37, 1), (1, 2), (1, 1), (1, 3), (1, 2), (1, 2), (1, 1), (1, 3)):
        r.forward(q, 1, ids=[1, q], q=q, k=128, batch=1, thread=thread)
    table = find(*r.build()).table
    assert table["context_sum"].tolist() == [37, 38, 39, 40, 41, 42, 43, 44]
    assert table["complete"].all()


def test_a_helper_thread_goes_with_the_thread_of_its_device():
    r = Recording()
    places = [{"thread": 1, "device": 0}, {"thread": 2, "device": 1}]
    for q, k in GENERATION:
        staggered(r, [((q, k), (q, k))], places)
        r.kernel("memcpy", "copy out", thread=3, device=1)
    steps = find(*r.build())
    assert len(steps.table) == 8
    ran = np.bincount(steps.activity_step)
    assert ran[found(steps, device=0)["step"]].tolist() == [PER_PASS] * 4
    assert ran[found(steps, device=1)["step"]].tolist() == [PER_PASS + 1] * 4


def test_a_named_range_cuts_its_own_thread_only():
    r = Recording()
    one, two = {"thread": 1, "device": 0}, {"thread": 2, "device": 1}
    for q, k in GENERATION:
        r.forward(q, None, layers=2, ids=[1, q], q=q, k=k, batch=1, **one)
        with r.annotate("warmup", thread=2):
            r.forward(q, 1, ids=[1, q], q=q, k=k, batch=1, **two)
        r.forward(q, 1, layers=2, q=q, k=k, batch=1, **one)
    steps = find(*r.build())
    assert found(steps, device=0)["phase"].tolist() == ["prefill", "decode", "decode", "decode"]
    assert found(steps, device=1)["phase"].tolist() == ["warmup"] * 4


def test_lost_kernels_are_missed_in_the_step_of_their_thread():
    r = Recording()
    one, two = {"thread": 1, "device": 0}, {"thread": 2, "device": 1}
    for i, (q, k) in enumerate(GENERATION):
        r.forward(q, None, layers=2, ids=[1, q], q=q, k=k, batch=1, **one)
        r.forward(q, None, layers=2, ids=[1, q], q=q, k=k, batch=1, **two)
        for _ in range(3 if i == 1 else 0):
            r.kernel("gemm", recorded=False, **one)
        r.forward(q, 1, layers=2, q=q, k=k, batch=1, **one)
        r.forward(q, 1, layers=2, q=q, k=k, batch=1, **two)
    steps = find(*r.build())
    assert found(steps, device=0)["complete"].tolist() == [True, False, True, True]
    assert found(steps, device=1)["complete"].all()


@pytest.mark.parametrize("labelled", [False, True])
def test_one_thread_that_drives_two_devices_at_once(labelled):
    """Tensor parallel: each device holds a part of every layer and of the lm_head."""
    r = Recording()
    for q, k in GENERATION:
        name = f"ta.step[{'prefill' if q > 1 else 'decode'} tokens={q}]"
        with r.annotate(name if labelled else "aten::nothing"):
            for device in (0, 1):
                op = r.op("aten::embedding", [[32000, 512], [1, q], [], [], []])
                r.kernel("embedding", op=op, device=device)
            for _ in range(4):
                for device in (0, 1):
                    r.layer(q, q=q, k=k, batch=1, device=device)
            for device in (0, 1):
                r.gemm(1, 32000, 512, device=device)
            r.kernel("sampling", "argmax", device=0)
    steps = find(*r.build())
    assert steps.facts.layers == 4
    for device in (0, 1):
        table = found(steps, device=device)
        assert table["phase"].tolist() == ["prefill", "decode", "decode", "decode"]
        assert table["tokens"].tolist() == [32, 1, 1, 1]
        assert table["context_sum"].tolist() == [32, 33, 34, 35]
        assert table["complete"].all()


def test_eager_attention_on_two_devices_at_once():
    """The batched products of the devices alternate: scores, scores, values, values."""
    r = Recording()
    for q, k in GENERATION:
        for device in (0, 1):
            r.kernel("embedding", op=r.op("aten::embedding", [[32000, 512], [1, q]]), device=device)
        for _ in range(3):
            for device in (0, 1):
                r.gemm(q, 1536, 512, device=device)
            for name, n, inner in (("scores", k, 64), ("values", 64, k)):
                for device in (0, 1):
                    r.kernel("gemm", name, m=q, n=n, k=inner, batch=4, device=device)
    steps = find(*r.build())
    assert steps.facts.layers == 3
    assert found(steps, device=1)["phase"].tolist() == ["prefill", "decode", "decode", "decode"]


def test_layers_that_devices_share_out_add_up():
    """One device after the other: three layers on the first, five on the second, where the logits are."""
    r = Recording()
    for q, k in GENERATION:
        r.forward(q, None, layers=3, ids=[1, q], q=q, k=k, batch=1, device=0)
        r.now += 1_000_000
        r.forward(q, 1, layers=5, q=q, k=k, batch=1, device=1)
        r.now += 1_000_000
    steps = find(*r.build())
    assert steps.facts.layers == 8
    assert found(steps, device=0)["tokens"].tolist() == [32, 1, 1, 1]
    assert found(steps, device=1)["phase"].tolist() == ["prefill", "decode", "decode", "decode"]
