"""The grammars of step labels, each with the numbers a reader gets from the text alone."""

from __future__ import annotations

from math import isnan

import pytest

from traceanalyzer.analysis.steps.labels import merge, parse

CASES = [
    (
        "execute_context_1(888)_generation_0(0)",
        {"engine": "vLLM", "phase": "prefill", "tokens": 888, "sequences": 1, "decode_tokens": 0},
    ),
    (
        "execute_context_1(888_788544)_generation_0(0)",
        {
            "phase": "prefill",
            "tokens": 888,
            "prefill_tokens": 888,
            "prefill_sequences": 1,
            "context_sum": 888,
            "query_context_sum": 888 * 888,
        },
    ),
    (
        "execute_context_2(6144)_generation_3(3)",
        {"phase": "mixed", "tokens": 6147, "prefill_tokens": 6144, "decode_tokens": 3, "sequences": 5},
    ),
    ("execute_context_0(0)_generation_8(32)", {"phase": "decode", "tokens": 32, "sequences": 8}),
    ("execute_context_0(0)_generation_0(0)", {"phase": "other", "tokens": 0}),
    (
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
        {"phase": "decode", "tokens": 32, "sequences": 32, "context_sum": 55086, "query_context_sum": 55086},
    ),
    (
        "execute_12_context_1(sq10sk30sqsq100sqsk300)_generation_2(sq2sk90sqsq2sqsk90)",
        {"phase": "mixed", "prefill_tokens": 10, "decode_tokens": 2, "context_sum": 120, "query_context_sum": 390},
    ),
    ("execute_new_2_cached_0", {"engine": "vLLM", "phase": "prefill", "sequences": 2}),
    ("execute_new_1_cached_3", {"phase": None, "sequences": 4}),
    ("execute_new_0_cached_3", {"phase": None, "sequences": 3}),
    (
        "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]",
        {
            "engine": "SGLang", "phase": "prefill", "tokens": 12, "sequences": 2, "context_sum": 20,
            "query_context_sum": 120,
        },
    ),
    ("step[DECODE bs=8]", {"phase": "decode", "tokens": 8, "sequences": 8, "decode_sequences": 8}),
    (
        "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
        {"phase": "decode", "tokens": 128, "sequences": 64, "context_sum": 131072},
    ),
    (
        "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
        {
            "phase": "mixed", "tokens": 6, "prefill_tokens": 5, "decode_tokens": 1, "prefill_sequences": 1,
            "decode_sequences": 1, "context_sum": 20, "query_context_sum": 52,
        },
    ),
    ("step[MIXED bs=2]", {"phase": "mixed", "sequences": 2, "tokens": None}),
    ("step[TARGET_VERIFY bs=4]", {"phase": "decode", "sequences": 4, "tokens": None}),
    ("step[DRAFT_EXTEND bs=4]", {"phase": "draft", "sequences": 4}),
    ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", {"phase": "draft", "sequences": 3, "padded_tokens": 1}),
    ("step[IDLE bs=0]", {"phase": "other"}),
    ("step[SOMETHING_NEW bs=1]", {"phase": "other"}),
    (
        "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
        {"engine": "ATOM", "phase": "prefill", "tokens": 14721, "sequences": 2, "context_sum": 14721},
    ),
    ("prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]", {"phase": "prefill", "context_sum": None}),
    ("prefill[bs=1 tok=8192 ctx=8192]", {"phase": "prefill", "context_sum": 8192}),
    (
        "decode[bs=117/128 tok=117 d=117]",
        {"engine": "ATOM", "phase": "decode", "tokens": 117, "sequences": 117, "padded_tokens": 11},
    ),
    (
        "decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]",
        {"phase": "decode", "tokens": 128, "sequences": 32, "context_sum": 65536, "query_context_sum": 262144},
    ),
    (
        "decode[bs=128 tok=384 p=2 d=126 sqsq=132612 sqsk=1114112 sk=258048]",
        {"phase": "mixed", "tokens": 384, "prefill_sequences": 2, "decode_sequences": 126},
    ),
    ("eager_decode[bs=4 tok=4 ctx=[9, 9, 9, 9]]", {"phase": "decode", "tokens": 4, "context_sum": 36}),
    ("draft[1/3 bs=8]", {"engine": "ATOM", "phase": "draft", "sequences": 8}),
    (
        "ta.step[decode n=17 tokens=2 seqs=2 ctx=80 qk=80]",
        {"engine": None, "phase": "decode", "tokens": 2, "sequences": 2, "context_sum": 80, "query_context_sum": 80},
    ),
    ("ta.step[PREFILL n=1 tokens=74 seqs=2 ctx=74 qk=2738]", {"phase": "prefill", "prefill_tokens": 74}),
    ("ta.step[nonsense n=1 tokens=3]", {"phase": "other", "tokens": 3}),
    ("ta.step[mixed tokens=9 seqs=3 prefill_tokens=7 decode_tokens=2]", {"phase": "mixed", "prefill_tokens": 7}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), CASES)
def test_step_labels(name, expected):
    label = parse(name)
    assert label is not None
    assert label.kind == "step"
    for key, value in expected.items():
        found = getattr(label, key)
        assert isnan(found) if value is None and isinstance(found, float) else found == value, key


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("prefill", "prefill"),
        ("model.step.tp0.decode", "decode"),
        ("LLM_PREFILL[BS=1]", "prefill"),
        ("Decoding step 3", "decode"),
        ("generate", None),
        ("vision_tower", "encoder"),
        ("warm_up", "warmup"),
        ("dummy_run", "warmup"),
    ],
)
def test_words_are_hints_not_steps(name, phase):
    label = parse(name)
    assert label is not None
    assert (label.kind, label.phase) == ("word", phase)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nccl:all_reduce",
        "Optimizer.step#SGD.step",
        "## Call CompiledFxGraph decode ##",
        "detokenize generate text",
        "decode_image",
        "tokenizer.decode",
        "schedule_prefill",
        "undecoded",
        "aten::decode",
        "execute_model",
        "step",
        "prefill" * 20,
        "execute_context_x(1)_generation_0(0)",
    ],
)
def test_what_is_no_label_is_none(name):
    assert parse(name) is None


def test_profiler_steps_and_captures_say_nothing_of_a_phase():
    step, capture = parse("ProfilerStep#6"), parse("capture_32_FULL")
    assert step is not None
    assert (step.kind, step.phase) == ("profiler", None)
    assert capture is not None
    assert (capture.kind, capture.phase) == ("capture", "capture")


def test_merge_keeps_the_facts_of_both():
    outer = parse("execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)_generation_0(sq0sk0sqsq0sqsk0)")
    inner = parse("step[EXTEND bs=15 toks=15360]")
    assert outer is not None
    assert inner is not None
    merged = merge(outer, inner)
    assert (merged.engine, merged.phase, merged.tokens, merged.sequences) == ("SGLang", "prefill", 15360, 15)
    assert (merged.context_sum, merged.query_context_sum) == (15360, 15728640)


def test_a_step_label_inside_a_capture_is_a_capture():
    capture, inner = parse("capture_32_FULL"), parse("step[DECODE bs=32]")
    assert capture is not None
    assert inner is not None
    assert merge(capture, inner).phase == "capture"
