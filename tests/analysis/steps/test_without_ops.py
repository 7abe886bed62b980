"""Recordings of the device alone: kernels and launches, but no ops, no shapes, no labels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.steps.factory import Recording
from tests.analysis.steps.test_unlabelled import FA2
from traceanalyzer.analysis.steps import find
from traceanalyzer.trace.tables import MISSING

PROMPT = FA2.format(causal="true", split="false")
TOKEN = FA2.format(causal="false", split="true")


def bare(
    r: Recording, attention: str, *, layers: int = 4, lookup: bool = True, gather: bool = False, sample: bool = True
) -> None:
    """A pass of which only names are known: layers of four products and an attention, all products alike."""
    if lookup:
        r.kernel("embedding", "gather")
    for _ in range(layers):
        r.kernel("gemm", "product")
        r.kernel("attention", attention)
        if gather:
            r.kernel("embedding", "gather")
        for _ in range(3):
            r.kernel("gemm", "product")
    r.kernel("gemm", "product")
    if sample:
        r.kernel("sampling", "argmax")


@pytest.mark.parametrize(
    "marks",
    [{}, {"sample": False}, {"lookup": False}, {"gather": True}, {"gather": True, "lookup": False}],
    ids=["lookup and sampling", "lookup", "sampling", "lookup in every layer", "sampling beside lookups"],
)
def test_passes_are_told_by_what_stands_once_in_each(marks):
    r = Recording()
    for attention in (PROMPT, *[TOKEN] * 6):
        bare(r, attention, **marks)
    steps = find(*r.build())
    table = steps.table
    assert table["phase"].tolist() == ["prefill"] + ["decode"] * 6
    assert table["complete"].all()
    assert table[["tokens", "sequences", "context_sum"]].isna().all(axis=None)
    assert (table["confidence"] < 0.9).all()
    assert len(set(np.bincount(steps.activity_step).tolist())) == 1
    assert (steps.facts.layers, steps.facts.workload) == (4, "generation")


def test_without_any_mark_nobody_knows_how_many_passes_ran():
    """Layers of five kernels with two between passes: too little stands out for the repetition to break off."""
    r = Recording()
    for _ in range(11):
        bare(r, TOKEN, lookup=False, sample=False)
    steps = find(*r.build())
    assert len(steps.table) == 1
    assert not steps.table["complete"].any()
    assert steps.facts.layers is None


def test_kernels_that_say_nothing_of_a_phase_leave_it_open():
    r = Recording()
    for _ in range(5):
        bare(r, "some_attention")
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["other"] * 5
    assert (steps.table["confidence"] <= 0.5).all()


def test_prompts_between_graphs():
    """Each prompt runs eagerly, each token is a graph; none of them looks ids up where it could be seen."""
    r = Recording()
    for _ in range(2):
        bare(r, PROMPT, lookup=False)
        for _ in range(3):
            r.kernel("memcpy", "inputs")
            r.graph(attention=TOKEN)
            r.kernel("gemm", "product")
            r.kernel("sampling", "argmax")
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == (["prefill"] + ["decode"] * 3) * 2
    assert (steps.facts.graph_mode, steps.facts.layers) == ("full", 4)


def test_threads_are_kept_apart_by_names_too():
    r = Recording()
    for attention in (PROMPT, TOKEN, TOKEN):
        for half in (0, 1):
            for thread in (1, 2):
                place = {"thread": thread, "device": thread - 1}
                if not half:
                    r.kernel("embedding", "gather", **place)
                for _ in range(2):
                    r.kernel("gemm", "product", **place)
                    r.kernel("attention", attention, **place)
                    r.kernel("gemm", "product", **place)
                if half:
                    r.kernel("gemm", "product", **place)
                    r.kernel("sampling", "argmax", **place)
    steps = find(*r.build())
    for device in (0, 1):
        assert steps.table["phase"][steps.table["device"] == device].tolist() == ["prefill", "decode", "decode"]
    assert np.bincount(steps.activity_step).tolist() == [4 * 3 + 3] * 6
    assert steps.facts.layers == 4


def test_gathers_alone_are_no_passes():
    r = Recording()
    for _ in range(20):
        r.kernel("embedding", "gather")
        r.kernel("gemm", "product")
    steps = find(*r.build())
    assert len(steps.table) == 0
    assert (steps.activity_step == MISSING).all()
