"""Which orders of kernels are taken for a pass of a model: the right one, and none that differs from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from traceanalyzer.analysis.replay.align import Refused
from traceanalyzer.analysis.replay.layers import Pass, arrange
from traceanalyzer.analysis.replay.sequence import Carriers
from traceanalyzer.catalog import models
from traceanalyzer.catalog.models import ModelConfig, SlidingWindow

DENSE = replace(models.find("llama-3.1-8b"), layers=4)
WINDOWED = replace(models.find("llama-3.1-8b"), layers=6, sliding_window=SlidingWindow(128, 2))
MIXED = replace(models.find("deepseek-v2-lite"), layers=4)
ROUTED = replace(models.find("qwen3-30b-a3b"), layers=3)

Kernel = tuple[str, str]
QKV, OUT, UP, DOWN = ("product", "qkv"), ("product", "o"), ("product", "up"), ("product", "down")
FIRST, NORM, ROPE, WRITE, ACT = ("norm", "first"), ("norm", "add"), ("rope", ""), ("kv_write", ""), ("activation", "")
HEAD = ("product", "head")
EXPERTS = [("product", "router"), ("routing", "topk"), ("routing", "sort"), ("experts", "e"), ACT, ("experts", "e")]
SHARED = [("product", "shared up"), ("activation", "shared"), ("product", "shared down")]
LATENT = [("product", "q"), ("product", "kv_a"), ("norm", "latent"), ROPE, WRITE, ("product", "absorb")]


def attends(config: ModelConfig, layer: int) -> list[Kernel]:
    if config.mla:
        return [*LATENT, ("attention", "mla"), ("product", "restore"), OUT]
    if config.window(layer):
        return [QKV, ROPE, WRITE, ("attention", "2d"), OUT]
    return [QKV, ROPE, WRITE, ("attention", "3d"), ("combine", ""), OUT]


def kernels(config: ModelConfig, comm: Sequence[Kernel] = ()) -> list[Kernel]:
    """A whole pass; `comm` after each row-parallel product."""
    out: list[Kernel] = [("embedding", "")]
    for layer in range(config.layers):
        out += [FIRST if layer == 0 else NORM, *attends(config, layer), *comm, NORM]
        if config.has_experts(layer):
            out += [*EXPERTS, ("routing", "sum"), *(SHARED if config.mla else [])]
        else:
            out += [UP, ACT, DOWN]
        out += comm
    return [*out, NORM, HEAD]


def carriers(run: Sequence[Kernel]) -> Carriers:
    names = {kernel: number for number, kernel in enumerate(dict.fromkeys(run))}
    codes = tuple(names[kernel] for kernel in run)
    return Carriers(tuple(part for part, _ in run), codes, (0,) * len(run), np.arange(len(run)))


def roles(run: Sequence[Kernel], config: ModelConfig) -> list[tuple[str, int]]:
    found = arrange(carriers(run), config, decodes=True)
    assert isinstance(found, Pass), found
    return list(found.roles.values())


def mutants(run: list[Kernel]) -> Iterator[tuple[str, list[Kernel]]]:
    """Every pass that one dropped, doubled, exchanged or moved kernel makes of this one, and that differs from it."""
    for i, kernel in enumerate(run):
        rest = run[:i] + run[i + 1 :]
        made = [("dropped", rest), ("doubled", [*run[:i], kernel, *run[i:]])]
        for j in range(i + 1, min(i + 8, len(run))):
            made.append(("exchanged", [*run[:i], run[j], *run[i + 1 : j], kernel, *run[j + 1 :]]))
            made.append(("moved", [*rest[:j], kernel, *rest[j:]]))
        yield from ((what, other) for what, other in made if other != run)


@pytest.mark.parametrize("config", [DENSE, WINDOWED, MIXED, ROUTED], ids=["dense", "windowed", "mixed", "routed"])
@pytest.mark.parametrize("comm", [(), (("comm", "sum"),)], ids=["one", "ranks"])
def test_only_the_right_order_is_taken(config: ModelConfig, comm: tuple[Kernel, ...]) -> None:
    run = kernels(config, comm)
    assert isinstance(arrange(carriers(run), config, decodes=True), Pass)
    taken = [
        (what, other)
        for what, other in mutants(run)
        if [k for k in other if k[0] != "embedding"] != [k for k in run if k[0] != "embedding"]
        and not isinstance(arrange(carriers(other), config, decodes=True), Refused)
    ]
    # The two products of the only dense layer look like each other: exchanged they are the same sum.
    lone = {"exchanged"} if config is MIXED else set()
    assert {what for what, _ in taken} <= lone
    assert len(taken) <= len(lone)


def test_roles_follow_the_order() -> None:
    found = roles(kernels(DENSE), DENSE)
    layer = ["qkv", "o", "gate_up", "down"]
    assert found == [(role, number) for number in range(4) for role in layer] + [("lm_head", -1)]
    apart = [k for kernel in kernels(DENSE) for k in ([QKV, QKV, QKV] if kernel == QKV else [kernel])]
    assert [role for role, layer_ in roles(apart, DENSE) if layer_ == 2] == ["q", "k", "v", "o", "gate_up", "down"]
    experts = [role for role, layer_ in roles(kernels(ROUTED), ROUTED) if layer_ == 1]
    assert experts == ["qkv", "o", "router", "expert_gate_up", "expert_down"]
    latent = [role for role, layer_ in roles(kernels(MIXED), MIXED) if layer_ == 3]
    assert latent[:5] == ["q", "kv_a", "absorb", "restore", "o"]
    assert latent[5:] == ["router", "expert_gate_up", "expert_down", "shared_gate_up", "shared_down"]


def without(run: list[Kernel], part: str, number: int) -> list[Kernel]:
    """The pass without the so manieth kernel that plays a part."""
    place = [i for i, kernel in enumerate(run) if kernel[0] == part][number]
    return run[:place] + run[place + 1 :]


def test_a_refusal_says_where() -> None:
    run = kernels(DENSE)
    for other, why in (
        (without(run, "attention", 2), "3 attention kernels, and the model has 4 layers"),
        (without(run, "rope", 2), "layer 2: kv_write where most others have rope"),
        (without(run, "kv_write", 0), "layer 0: attention where most others have kv_write"),
        (without(run, "activation", 1), "layer 1: product where most others have activation"),
        (without(run, "norm", 0), "after the last layer: norm, where norm, norm was expected"),
        (without(run, "norm", -1), "after the last layer: nothing, where norm was expected"),
    ):
        found = arrange(carriers(other), DENSE, decodes=True)
        assert isinstance(found, Refused)
        assert found.why == why


def test_a_prefill_chunk_may_end_without_the_output_layer() -> None:
    run = kernels(DENSE)[:-1]
    assert isinstance(arrange(carriers(run), DENSE, decodes=False), Pass)
    assert isinstance(arrange(carriers(run), DENSE, decodes=True), Refused)


def test_another_model_is_refused() -> None:
    run = kernels(WINDOWED)
    assert isinstance(arrange(carriers(run), replace(WINDOWED, layers=5), decodes=True), Refused)
    assert isinstance(arrange(carriers(run), replace(WINDOWED, sliding_window=SlidingWindow(128, 3)), True), Refused)
    assert isinstance(arrange(carriers(run), replace(ROUTED, layers=6), decodes=True), Refused)
