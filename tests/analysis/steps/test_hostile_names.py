"""Names that nobody writes by accident: reading them takes no time to speak of, and they count nothing."""

from __future__ import annotations

import re
import time
from math import isnan

import pytest

from tests.analysis.steps.factory import Recording
from traceanalyzer.analysis.steps import find, hints, labels, run, submission
from traceanalyzer.analysis.steps.hints import template_hint
from traceanalyzer.analysis.steps.labels import Label, parse
from traceanalyzer.analysis.steps.model import FACTS

PREFIXES = (
    "", "void flash_fwd_kernel<x>, ", "CollectiveMainloopFwdSm90<x Sm90, ", "KernelTraits<(flashinfer::MaskMode)",
    "step[DECODE ", "prefill[bs=", "draft[1/2 bs=", "ta.step[decode ", "execute_context_", "execute_1_context_1(sq",
    "execute_new_", "capture_1_", "multi_tensor_apply_kernel<", "softmax", "autograd::engine::", "aten::",
)  # fmt: skip
FILLERS = (
    "1", "a", " ", "_", "[", "a=", "a=[", "a=[ ", "true,", "true , ", "1 ", ">, 1, ", "Sm1", "softmax", "Backward",
    "_backward", "flash_fwd_kernel<", "CollectiveMainloopFwdSm9<", "prefill", "decode_", "²",
    "multi_tensor_apply_kernel<",
)  # fmt: skip
PATTERNS = [
    pytest.param(value, id=f"{module.__name__.rpartition('.')[2]}-{name}")
    for module in (hints, labels, run, submission)
    for name, value in vars(module).items()
    if isinstance(value, re.Pattern)
]


def seconds(pattern: re.Pattern[str], text: str) -> float:
    start = time.process_time()
    pattern.search(text)
    pattern.findall(text)
    return time.process_time() - start


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_is_quick_on_hostile_text(pattern):
    """The short texts catch exponential patterns before the long ones, as long as any that is read, could hang."""
    for length in (22, 2000):
        texts = [prefix + (filler * length)[:length] + "!" for prefix in PREFIXES for filler in FILLERS]
        slowest = max(texts, key=lambda text: seconds(pattern, text))
        assert seconds(pattern, slowest) < 0.2, slowest[:80]


def test_long_names_are_read_at_once():
    start = time.process_time()
    for prefix in PREFIXES:
        for filler in ("a", "1", "a=[", "true, ", "softmax"):
            text = prefix + filler * 100_000
            parse(text + "]")
            template_hint(text)
    assert time.process_time() - start < 5


HUGE = "9" * 400


@pytest.mark.parametrize(
    "name",
    [
        f"execute_context_1({HUGE})_generation_0(0)",
        f"execute_context_{HUGE}(1)_generation_0(0)",
        f"execute_1_context_1(sq1sk{HUGE}sqsq1sqsk1)_generation_0(sq0sk0sqsq0sqsk0)",
        f"execute_new_{HUGE}_cached_1",
        f"execute_context_1({'9' * 5000})_generation_0(0)",
        f"step[EXTEND bs=2 toks={HUGE} c_sk=20]",
        "step[DECODE bs=9007199254740993]",
        "step[DECODE bs=²]",
        "prefill[bs=² tok=14721]",
        "decode[bs=1/² tok=1]",
        f"prefill[bs=1 tok=1 ctx=[{HUGE}, 1]]",
        "prefill[bs=2 tok=4 ctx=[9007199254740992, 9007199254740992]]",
        "ta.step[decode tokens=٣ seqs=1]",
        f"ta.step[decode tokens={HUGE}]",
    ],
)
def test_a_label_with_a_number_that_counts_nothing_is_no_label(name):
    assert parse(name) is None


def test_the_largest_count_is_still_one():
    label = parse("step[EXTEND bs=2 toks=9007199254740992]")
    assert label is not None
    assert label.tokens == 2**53


def test_a_word_keeps_its_meaning_beside_a_long_identifier():
    label = parse("decode 1700000000000000000")
    assert label is not None
    assert (label.kind, label.phase) == ("word", "decode")


@pytest.mark.parametrize(
    "name", ["ta.step[decode tokens=2 seqs=0 ctx=80]", "decode[bs=0/4 tok=2 sk=80]", "step[DECODE bs=0 g_sq=2 g_sk=80]"]
)
def test_no_sequences_have_no_context(name):
    label = parse(name)
    assert label is not None
    assert (label.phase, label.tokens) == ("decode", 2)
    assert isnan(label.sequences)
    assert isnan(label.decode_sequences)
    assert isnan(label.context_sum)


@pytest.mark.parametrize("name", ["step[DECODE bs=8 raw_bs=9 g_sq=9]", "decode[bs=9/8 tok=9]"])
def test_padding_is_never_negative(name):
    label = parse(name)
    assert label is not None
    assert (label.sequences, label.tokens) == (9, 9)
    assert isnan(label.padded_tokens)


def test_no_label_states_a_negative_or_infinite_count():
    for prefix in PREFIXES:
        for number in ("0", "-1", "1e999", "²", HUGE, "9007199254740993"):
            label: Label | None = parse(f"{prefix}{number} bs={number} raw_bs={number} toks={number} tokens={number}]")
            for value in (getattr(label, name) for name in FACTS) if label is not None else ():
                assert isnan(value) or 0 <= value <= 2**53


def test_a_step_with_an_unreadable_label_is_judged_by_its_shapes():
    r = Recording()
    with r.annotate(f"step[EXTEND bs=2 toks={HUGE}]"):
        r.forward(2, 2, ids=[2, 1], q=1, k=40, batch=2)
    row = find(*r.build()).table.iloc[0]
    assert (row.phase, row.tokens, row.sequences, row.context_sum) == ("decode", 2, 2, 80)


@pytest.mark.parametrize("ids", [[2**70, 1], [2**40, 2**40], [-8, 1], [True, True], [10**200]])
def test_ids_of_impossible_shape_are_not_read(ids):
    """The lookup still starts a pass; its tokens come from the products."""
    r = Recording()
    for _ in range(3):
        r.forward(8, 8, ids=ids)
    steps = find(*r.build())
    assert steps.table["tokens"].tolist() == [8, 8, 8]
    assert steps.facts.layers == 4
