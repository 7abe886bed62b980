"""Steps that labels name: joined by launch, merged where they nest, split where they count both kinds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.steps.factory import Recording
from traceanalyzer.analysis.steps import find
from traceanalyzer.trace.tables import MISSING


def test_async_scheduling_joins_by_launch_not_by_time():
    """The device lags 5 ms: each label ends before its first kernel starts, and the next label covers them in time."""
    r = Recording(lag=5_000_000)
    names = ["execute_context_1(64)_generation_0(0)", "execute_context_0(0)_generation_1(1)"]
    for name, tokens in zip(names, (64, 1), strict=True):
        with r.annotate(name):
            r.forward(tokens, 1, kv_write=True)
        r.now += 100_000
    steps = find(*r.build())
    per_step = 1 * 4 * 7 + 2
    assert steps.table["phase"].tolist() == ["prefill", "decode"]
    assert steps.activity_step.tolist() == [0] * per_step + [1] * per_step
    assert min(k["start_ns"] for k in r.kernels) > r.annotations[0]["start_ns"] + r.annotations[0]["duration_ns"]
    assert steps.table["complete"].all()


def test_nested_labels_of_one_piece_of_work_are_one_step():
    r = Recording()
    with r.annotate("execute_8_context_2(sq8sk20sqsq32sqsk80)_generation_0(sq0sk0sqsq0sqsk0)"):
        r.kernel("elementwise")
        with r.annotate("step[EXTEND bs=2 toks=8]"):
            r.forward(8, 2)
        r.kernel("sampling")
    table = find(*r.build()).table
    assert len(table) == 1
    row = table.iloc[0]
    assert (row.phase, row.tokens, row.sequences, row.context_sum, row.query_context_sum) == ("prefill", 8, 2, 20, 80)
    assert row.evidence[0] == "annotation step[EXTEND]"


def test_a_label_around_several_steps_is_no_step():
    r = Recording()
    with r.annotate("ta.step[other n=0]"):
        r.kernel("elementwise")
        for n in range(3):
            with r.annotate(f"step[DECODE bs={n + 1}]"):
                r.forward(n + 1, n + 1)
    steps = find(*r.build())
    assert steps.table["tokens"].tolist() == [1, 2, 3]
    assert steps.activity_step.tolist()[0] == MISSING


def test_draft_passes_inside_a_step_have_it_as_parent():
    r = Recording()
    with r.annotate("step[VERIFY bs=2 g_sq=6]"):
        r.forward(6, 6)
        with r.annotate("step[DRAFT bs=2]"):
            r.forward(2, 2, layers=1)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode", "draft"]
    assert table["parent_step"].tolist() == [MISSING, 0]
    assert table["tokens"].tolist()[0] == 6


def test_a_draft_model_with_the_targets_label_is_told_by_its_layers():
    r = Recording()
    for _ in range(2):
        for layers in (8, 1):
            with r.annotate("step[EXTEND bs=1 toks=64]"):
                r.forward(64, 1, layers=layers)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill", "draft", "prefill", "draft"]
    assert steps.table["parent_step"].tolist() == [MISSING, 0, MISSING, 2]
    assert steps.facts.layers == 8


def test_mixed_steps_are_split_by_the_label():
    r = Recording()
    with r.annotate("execute_context_2(600)_generation_5(5)"):
        r.forward(605, 7)
    row = find(*r.build()).table.iloc[0]
    assert row.phase == "mixed"
    assert (row.prefill_tokens, row.decode_tokens, row.tokens) == (600, 5, 605)
    assert (row.prefill_sequences, row.decode_sequences, row.sequences) == (2, 5, 7)


def test_padding_is_what_ran_beyond_the_label():
    r = Recording()
    with r.annotate("execute_context_0(0)_generation_5(5)"):
        r.forward(8, 5)
    with r.annotate("decode[bs=6/8 tok=6 d=6]"):
        r.forward(8, 6)
    with r.annotate("execute_context_0(0)_generation_3(3)"):
        r.forward(24, 3)  # another rank's tokens, not padding
    table = find(*r.build()).table
    assert table["padded_tokens"].tolist()[:2] == [3, 2]
    assert np.isnan(table["padded_tokens"].iloc[2])


def test_unlabelled_sampling_after_a_step_belongs_to_it():
    r = Recording()
    for _ in range(2):
        r.kernel("memcpy", "inputs")
        with r.annotate("execute_context_0(0)_generation_4(4)"):
            r.forward(4, 4, sample=False)
        r.kernel("softmax")
        r.kernel("sampling", "argmax")
    steps = find(*r.build())
    per_step = 4 * 6 + 1
    expected = [MISSING] + [0] * (per_step + 2) + [MISSING] + [1] * (per_step + 2)
    assert steps.activity_step.tolist() == expected


def test_a_pass_that_the_window_cut_before_its_label_is_not_the_tail_of_the_one_before():
    """Two labelled steps that sample outside their label; then a copy, and the first half of a pass without one."""
    r = Recording()
    for _ in range(2):
        with r.annotate("execute_context_0(0)_generation_4(4)"):
            r.forward(4, 4, sample=False)
        r.kernel("sampling", "argmax")
    r.kernel("memcpy", "to the host")
    r.forward(4, None, layers=2, ids=[4])
    steps = find(*r.build())
    whole = 4 * 6 + 1 + 1  # four layers, the lm_head, the sampling
    assert steps.activity_step.tolist() == [0] * whole + [1] * whole + [MISSING] + [2] * (1 + 2 * 6)
    assert steps.table["complete"].tolist() == [True, True, False]
    assert steps.table["tokens"].tolist() == [4, 4, 4]


def test_a_cut_pass_without_a_lookup_begins_after_the_sampling():
    r = Recording()
    with r.annotate("execute_context_0(0)_generation_4(4)"):
        r.forward(4, 4, sample=False)
    r.kernel("embedding", "rows that get logits")
    r.gemm(4, 1000, 64)
    r.kernel("sampling", "argmax")
    r.forward(4, None, layers=1)
    steps = find(*r.build())
    assert steps.activity_step.tolist() == [0] * (4 * 6 + 1 + 3) + [1] * 6


def test_drafts_after_every_label_belong_to_their_step():
    whole = 4 * 6 + 1 + 1
    r = Recording()
    for _ in range(2):
        with r.annotate("execute_context_0(0)_generation_4(4)"):
            r.forward(4, 4, sample=False)
        r.kernel("sampling", "argmax")
        r.forward(4, 4, layers=1)
    steps = find(*r.build())
    drafts = len(steps.activity_step) // 2 - whole
    assert drafts > 6
    assert steps.activity_step.tolist() == [0] * (whole + drafts) + [1] * (whole + drafts)


def test_passes_that_nobody_labelled_are_no_step():
    r = Recording()
    with r.annotate("execute_context_0(0)_generation_4(4)"):
        r.forward(4, 4, sample=False)
    r.kernel("sampling", "argmax")
    for _ in range(3):
        r.forward(4, 4)
    steps = find(*r.build())
    whole = 4 * 6 + 1 + 1
    assert steps.activity_step.tolist()[:whole] == [0] * whole
    assert set(steps.activity_step.tolist()[whole:]) == {MISSING}


def test_kernels_launched_before_the_window_belong_to_no_step():
    r = Recording()
    for _ in range(3):
        r.kernel("gemm", launched=False)
    with r.annotate("step[DECODE bs=4]"):
        r.forward(4, 4)
    steps = find(*r.build())
    assert steps.activity_step.tolist()[:3] == [MISSING] * 3
    assert set(steps.activity_step.tolist()[3:]) == {0}


def test_a_kernel_without_launch_between_two_of_a_step_belongs_to_it():
    r = Recording()
    with r.annotate("step[DECODE bs=4]"):
        r.forward(4, 4)
        r.kernel("other", launched=False)
        r.kernel("other", launched=False, stream=9)
        r.kernel("sampling")
    steps = find(*r.build())
    alone = [i for i, k in enumerate(steps.activity_step) if k == MISSING]
    trace, *_ = r.build()
    assert trace.kernels["stream"].to_numpy()[alone].tolist() == [9]


def test_the_profilers_copy_places_kernels_whose_host_label_is_missing():
    r = Recording()
    with r.annotate("step[DECODE bs=4]", on_host=False, on_device=True):
        r.forward(4, 4)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["decode"]
    assert set(steps.activity_step.tolist()) == {0}
    assert not steps.table["complete"].any()  # its host part was not recorded


def test_steps_known_from_the_device_only_are_complete_when_they_agree():
    r = Recording()
    for layers in (4, 4, 2):
        with r.annotate("step[DECODE bs=4]", on_host=False, on_device=True):
            r.forward(4, 4, layers=layers)
    assert find(*r.build()).table["complete"].tolist() == [True, True, False]


def test_overlapping_streams_keep_their_steps():
    """A draft step on a second stream runs while the target's step runs: launches keep them apart."""
    r = Recording()
    with r.annotate("step[EXTEND bs=1 toks=64]"):
        r.forward(64, 1)
    with r.annotate("step[DRAFT_EXTEND bs=1]"):
        r.forward(64, 1, layers=1, stream=9)
    steps = find(*r.build())
    trace, *_ = r.build()
    by_stream = {s: set(steps.activity_step[(trace.kernels["stream"] == s).to_numpy()].tolist()) for s in (7, 9)}
    assert by_stream[9] == {1}
    assert 0 in by_stream[7]
    table = steps.table
    assert table["start_ns"].iloc[1] < table["end_ns"].iloc[0]
    assert table["parent_step"].tolist() == [MISSING, 0]


def test_two_devices_give_a_row_each():
    r = Recording()
    with r.annotate("step[DECODE bs=4]"):
        for device in (0, 1):
            for _ in range(4):
                r.layer(4, device=device)
    table = find(*r.build()).table
    assert table["device"].tolist() == [0, 1]
    assert table["step"].tolist() == [0, 1]


def test_lost_kernels_make_a_step_incomplete():
    r = Recording()
    for lost in (0, 3):
        with r.annotate("step[DECODE bs=4]"):
            r.forward(4, 4)
            for _ in range(lost):
                r.kernel("gemm", recorded=False)
    assert find(*r.build()).table["complete"].tolist() == [True, False]


def test_a_label_without_phase_leaves_it_to_the_shapes():
    r = Recording()
    with r.annotate("execute_new_0_cached_4"):
        r.forward(4, 4, q=1, k=90, batch=4)
    with r.annotate("execute_new_1_cached_3"):
        r.forward(67, 4)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode", "prefill"]
    assert table["context_sum"].iloc[0] == 360


def test_a_label_that_shapes_contradict_loses_confidence():
    r = Recording()
    for q, k in ((512, 512), (1, 512)):
        with r.annotate("step[DECODE bs=1]"):
            r.forward(q, 1, q=q, k=k, batch=1)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode", "decode"]
    assert table["confidence"].tolist() == [pytest.approx(0.7), pytest.approx(0.99)]


def test_an_idle_label_is_other():
    r = Recording()
    with r.annotate("step[IDLE bs=0]"):
        r.forward(1, 1)
    assert find(*r.build()).table["phase"].tolist() == ["other"]


def test_labels_without_kernels_give_no_step():
    r = Recording()
    with r.annotate("step[DECODE bs=4]"):
        r.now += 1000
    r.kernel("elementwise")
    steps = find(*r.build())
    assert len(steps.table) == 0
    assert steps.activity_step.tolist() == [MISSING]
