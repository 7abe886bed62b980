"""Passes that are no prompt and no decoding, and runs that overlap, by kernels and grids alone."""

from __future__ import annotations

import numpy as np

from tests.analysis.steps.test_grids import WHOLE, WRITE, Gridded
from traceanalyzer.analysis.steps import find

UNMASKED, CAUSAL = WHOLE.format(causal="false"), WHOLE.format(causal="true")


def passed(r: Gridded, tokens: int, sequences: int = 1, layers: int = 3, **place: int) -> None:
    """A language model's pass."""
    r.kernel("embedding", "gather", **place)
    for _ in range(layers):
        r.kernel("gemm", "product", **place)
        r.gridded("kv_cache", WRITE, tokens, **place)
        prompt = tokens > sequences
        r.gridded("attention", CAUSAL if prompt else UNMASKED, -(-tokens // 128 // sequences), sequences, **place)
        r.kernel("gemm", "product", **place)
    r.kernel("gemm", "product", **place)
    r.kernel("sampling", "argmax", **place)


def looked_at(r: Gridded, patches: int, layers: int = 4) -> None:
    """A tower over an image: a convolution, and layers that see all patches."""
    r.kernel("conv", "implicit_convolve_sgemm")
    for _ in range(layers):
        r.kernel("gemm", "product")
        r.gridded("attention", UNMASKED, -(-patches // 128), 1)
        r.kernel("gemm", "product")


def test_a_tower_before_each_prompt_is_an_encoder():
    r = Gridded()
    for _ in range(2):
        looked_at(r, 1024)
        passed(r, 700)
        for _ in range(3):
            passed(r, 1)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["encoder", "prefill", "decode", "decode", "decode"] * 2


def test_a_model_that_makes_images_has_no_phase():
    """Every denoising pass runs over the whole image; nothing is looked up, sampled or cached."""
    r = Gridded()
    for _ in range(6):
        looked_at(r, 4096)
    table = find(*r.build()).table
    assert set(table["phase"]) == {"other"}


def test_a_host_that_is_a_step_ahead():
    """The device runs a step while the host launches the next one."""
    r = Gridded(lag=3_000_000)
    passed(r, 600)
    for _ in range(5):
        passed(r, 1)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill"] + ["decode"] * 5
    assert len(set(np.bincount(steps.activity_step).tolist())) == 1


def test_models_that_only_read_prompts_decode_nothing():
    r = Gridded()
    for tokens in (600, 400, 900):
        r.kernel("embedding", "gather")
        for _ in range(3):
            r.kernel("gemm", "product")
            r.gridded("attention", UNMASKED, -(-tokens // 128), 1)
            r.kernel("gemm", "product")
    table = find(*r.build()).table
    assert set(table["phase"]) == {"prefill"}
