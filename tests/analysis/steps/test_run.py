"""What a trace as a whole is: training, capture, generation or prefill only; the engine; names without step labels."""

from __future__ import annotations

import pytest

from tests.analysis.steps.factory import HIDDEN, Recording
from traceanalyzer.analysis.steps import find
from traceanalyzer.trace.tables import Metadata


def training_step(r: Recording) -> None:
    r.forward(64, 64, ids=[2, 32], q=32, k=32, batch=2, sample=False)
    r.op("autograd::engine::evaluate_function: MmBackward0", thread=2)
    for _ in range(4):
        r.gemm(64, HIDDEN, HIDDEN, thread=2)


def test_training_has_no_steps_of_inference():
    r = Recording()
    for _ in range(2):
        training_step(r)
    steps = find(*r.build())
    assert steps.facts.workload == "training"
    assert len(steps.table) == 0


@pytest.mark.parametrize("name", ["Optimizer.step#AdamW.step"])
def test_an_optimizer_range_means_training(name):
    r = Recording()
    with r.annotate(name):
        r.kernel("elementwise")
    assert find(*r.build()).facts.workload == "training"


def test_backward_kernels_alone_mean_training():
    r = Recording()
    names = ["void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<1>", "layer_norm_grad_input_kernel"]
    for name in names:
        r.kernel("attention", name)
    assert find(*r.build()).facts.workload == "training"


def test_one_odd_kernel_name_does_not():
    r = Recording()
    r.forward(64, 1, ids=[1, 64], q=64, k=64, batch=1)
    r.kernel("attention", "flash_bwd_like")
    assert find(*r.build()).facts.workload == "generation"


def test_inference_beside_training_is_kept_when_labelled():
    r = Recording()
    training_step(r)
    with r.annotate("execute_context_0(0)_generation_4(4)"):
        r.forward(4, 4)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["decode"]
    assert steps.facts.workload == "generation"


def test_a_capture_runs_nothing():
    r = Recording()
    with r.annotate("capture_32_FULL"):
        r.kernel("memset")
        r.launch("cudaStreamBeginCapture")
        for _ in range(4 * 6):
            r.kernel("gemm", recorded=False)
        r.launch("cudaStreamEndCapture")
    steps = find(*r.build())
    assert steps.facts.workload == "capture"
    assert steps.table["phase"].tolist() == ["capture"]
    assert not steps.table["complete"].any()
    assert set(steps.activity_step.tolist()) == {0}


def test_a_capture_without_label():
    r = Recording()
    r.launch("hipStreamBeginCapture")
    for _ in range(20):
        r.kernel("gemm", recorded=False)
    r.kernel("memset")
    steps = find(*r.build())
    assert steps.facts.workload == "capture"
    assert steps.table["evidence"].iloc[0] == ("stream capture, no replay",)


def test_a_capture_followed_by_its_use_is_generation():
    r = Recording()
    with r.annotate("capture_4_FULL"):
        r.launch("cudaStreamBeginCapture")
        for _ in range(12):
            r.kernel("gemm", recorded=False)
        r.kernel("memset")
    for _ in range(6):
        with r.annotate("step[DECODE bs=4]"):
            r.forward(4, 4)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["capture"] + ["decode"] * 6
    assert steps.facts.workload == "generation"


def test_scoring_a_prompt_is_prefill_only():
    """Logits for all tokens and nothing sampled after them."""
    r = Recording()
    r.forward(128, 128, ids=[1, 128], q=128, k=128, batch=1, sample=False)
    assert find(*r.build()).facts.workload == "prefill_only"


def test_routing_is_not_sampling():
    """A top-k before the lm_head chooses experts, not tokens."""
    r = Recording()
    op = r.op("aten::embedding", [[32000, HIDDEN], [1, 64]])
    r.kernel("embedding", op=op)
    for _ in range(4):
        r.layer(64, q=64, k=64, batch=1)
        r.kernel("sampling", "gatherTopK")
    r.gemm(64, 32000, HIDDEN)
    assert find(*r.build()).facts.workload == "prefill_only"


@pytest.mark.parametrize(
    ("label", "engine"),
    [
        ("execute_context_0(0)_generation_4(4)", "vLLM"),
        ("step[DECODE bs=4]", "SGLang"),
        ("decode[bs=4 tok=4 d=4]", "ATOM"),
        ("ta.step[decode n=1 tokens=4]", None),
    ],
)
def test_the_engine_by_its_labels(label, engine):
    r = Recording()
    with r.annotate(label):
        r.forward(4, 4)
    assert find(*r.build()).facts.engine == engine


@pytest.mark.parametrize(
    ("op", "engine"),
    [
        ("vllm::unified_attention_with_output", "vLLM"),
        ("sgl_kernel::rotary_embedding", "SGLang"),
        ("trtllm::fused_moe", "TensorRT-LLM"),
        ("aten::mm", None),
    ],
)
def test_the_engine_by_its_ops(op, engine):
    r = Recording()
    r.op(op)
    r.forward(4, 4, ids=[4])
    assert find(*r.build()).facts.engine == engine


@pytest.mark.parametrize(
    ("metadata", "engine"),
    [
        (Metadata(producer={"torch": "2.9", "vllm": "0.26"}), "vLLM"),
        (Metadata(), None),
    ],
)
def test_the_engine_by_the_metadata(metadata, engine):
    r = Recording(metadata=metadata)
    r.forward(4, 4, ids=[4])
    assert find(*r.build()).facts.engine == engine


def test_decode_steps_that_differ_are_a_mixed_mode():
    r = Recording()
    with r.annotate("step[DECODE bs=4]"):
        r.graph()
    with r.annotate("step[DECODE bs=4]"):
        r.forward(4, 4)
    assert find(*r.build()).facts.graph_mode == "mixed"


@pytest.mark.parametrize("training", [False, True])
def test_work_that_assumes_equal_lengths_is_noted(training):
    r = Recording()
    if training:
        training_step(r)
    r.forward(8, 8, estimated=True)
    r.forward(8, 8)
    kernels = 4 * 6  # of four layers with six kernels each
    notes = [note for note in find(*r.build()).facts.notes if note.code == "estimated_work"]
    assert [(note.severity, note.count) for note in notes] == [("info", kernels)]


def test_exact_work_is_not_noted():
    r = Recording()
    r.forward(8, 8)
    assert not find(*r.build()).facts.notes


def test_kernels_that_share_a_launch_are_a_replay_whatever_the_call_is_named():
    r = Recording()
    for _ in range(3):
        r.graph(name="hipLaunchSomethingNew")
        r.kernel("sampling", "argmax")
    assert find(*r.build()).facts.graph_mode == "full"
