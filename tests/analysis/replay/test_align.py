"""Lining up replays with references: what was changed in the replay never gets another kernel's work."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from traceanalyzer.analysis.replay.align import Alignment, Refused, align
from traceanalyzer.analysis.replay.reference import GRID_AXES, Ints, Reference, fitting
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import MISSING

Kernel = tuple[str, int]
"""A name, and a number that stands for its work."""

FUSED: tuple[Kernel, ...] = (
    ("norm", 1), ("gemm a", 2), ("rope", 3), ("write", 4), ("attention", 5), ("gemm a", 6), ("norm", 7), ("gemm b", 8),
    ("pad", 9), ("top k", 10), ("sum", 11), ("up", 12), ("down", 13), ("finish", 14),
)  # fmt: skip
PLAIN: tuple[Kernel, ...] = (
    ("pow", 1), ("mean", 2), ("mul", 3), ("mul", 4), ("gemm", 5), ("gemm", 6), ("gemm", 6), ("cat", 7), ("mul", 8),
    ("mul", 8), ("add", 9), ("attention", 10), ("gemm", 11), ("add", 12), ("pow", 1), ("mean", 2), ("mul", 3),
    ("mul", 4), ("gemm", 13), ("gemm", 13), ("silu", 14), ("mul", 15), ("gemm", 16), ("add", 12),
)  # fmt: skip


def work(number: int) -> OpWork:
    return OpWork("made", "gemm", "gemm", flops=float(number), bytes=float(number))


def grids(count: int, size: int = MISSING) -> Ints:
    return np.full((count, len(GRID_AXES)), size, np.int64)


def reference(kernels: Sequence[Kernel], sizes: Ints | None = None, tokens: int | None = None) -> Reference:
    return Reference(
        name="made",
        tokens=tokens,
        names=tuple(name for name, _ in kernels),
        grids=grids(len(kernels)) if sizes is None else sizes,
        works=tuple(work(number) for _, number in kernels),
        evidence=None,  # type: ignore[arg-type]
        rows=np.arange(len(kernels)),
    )


def sequence(layer: Sequence[Kernel], layers: int = 24) -> list[Kernel]:
    return [("embed", 100), *[kernel for _ in range(layers) for kernel in layer], ("lm_head", 101)]


def names(kernels: Sequence[Kernel]) -> list[str]:
    return [name for name, _ in kernels]


@pytest.mark.parametrize("layer", [FUSED, PLAIN])
def test_a_replay_of_the_same_kernels_lines_up_one_by_one(layer: tuple[Kernel, ...]) -> None:
    known = sequence(layer)
    found = align(names(known), grids(len(known)), reference(known))
    assert isinstance(found, Alignment)
    assert found.covered == 1.0
    assert found.position.tolist() == list(range(len(known)))


def test_what_stands_around_the_replay_in_the_reference_is_skipped() -> None:
    known = [("copy", 50), ("fill", 51), *sequence(FUSED), ("soft max", 60), ("arg max", 61)]
    replayed = sequence(FUSED)
    found = align(names(replayed), grids(len(replayed)), reference(known))
    assert isinstance(found, Alignment)
    assert found.position.tolist() == list(range(2, 2 + len(replayed)))


def changed(kernels: Sequence[Kernel], chance: random.Random) -> list[Kernel]:
    """The same with one change: two kernels of different names exchanged, one lost, twice, another's, or elsewhere."""
    out = list(kernels)
    i, j = chance.randrange(len(out)), chance.randrange(len(out))
    how = chance.choice(["exchange", "neighbours", "drop", "twice", "rename", "insert"])
    if how == "neighbours":
        j = min(i + 1, len(out) - 1)
    if how in ("exchange", "neighbours"):
        if out[i][0] != out[j][0]:
            out[i], out[j] = out[j], out[i]
    elif how == "drop":
        del out[i]
    elif how == "twice":
        out.insert(i, (out[i][0], -1))
    elif how == "rename":
        out[i] = ("another", -1)
    else:
        out.insert(i, (out[j][0], -1))
    return out


@pytest.mark.parametrize("layer", [FUSED, PLAIN])
def test_a_changed_replay_never_gives_a_kernel_the_work_of_another(layer: tuple[Kernel, ...]) -> None:
    chance = random.Random(7)
    known = sequence(layer, layers=8)
    against = reference(known)
    for _ in range(150):
        replayed = changed(known, chance)
        found = align(names(replayed), grids(len(replayed)), against)
        assert isinstance(found, Alignment)
        given = [(number, known[at][1]) for (_, number), at in zip(replayed, found.position.tolist(), strict=True)
                 if at >= 0]  # fmt: skip
        assert all(true == said for true, said in given), replayed
        assert len(replayed) - len(given) <= 12


def test_two_exchanged_neighbours_leave_at_most_themselves_without_work() -> None:
    known = sequence(FUSED)
    replayed = list(known)
    replayed[31], replayed[32] = replayed[32], replayed[31]
    found = align(names(replayed), grids(len(replayed)), reference(known))
    assert isinstance(found, Alignment)
    assert set(np.flatnonzero(found.position < 0).tolist()) <= {31, 32}


def test_kernels_exchanged_in_every_layer_are_refused() -> None:
    known = sequence(FUSED)
    other = (*FUSED[:2], FUSED[3], FUSED[2], *FUSED[4:])
    replayed = sequence(other)
    found = align(names(replayed), grids(len(replayed)), reference(known))
    assert found == Refused("the same kernels ran in another order")


def test_other_kernels_are_refused() -> None:
    replayed = sequence(PLAIN)
    found = align(names(replayed), grids(len(replayed)), reference(sequence(FUSED)))
    assert isinstance(found, Refused)
    assert "other names" in found.why


def test_a_reference_of_another_number_of_layers_gives_no_layer_the_work_of_another() -> None:
    size = len(FUSED)
    half = [(name, number if i <= 12 * size else number + 1000) for i, (name, number) in enumerate(sequence(FUSED))]
    replayed = sequence(FUSED, layers=23)
    found = align(names(replayed), grids(len(replayed)), reference(half))
    assert isinstance(found, Alignment)
    # one layer is missing, of whichever half: only the twelfth that is left may be of either
    for layer in range(23):
        places = found.position[1 + layer * size : 1 + (layer + 1) * size]
        given = {half[at][1] > 1000 for at in places.tolist() if at >= 0}
        assert given <= ({False} if layer < 11 else {True} if layer > 11 else set())


def test_a_deeper_model_of_the_same_kernels_is_refused() -> None:
    layer = (("rms_norm_kernel", 1), ("Cijk_Alik_Bljk_BBS_BH_MT32x32x256", 2), ("paged_attention_v1_kernel", 3),
             ("Cijk_Alik_Bljk_BBS_BH_MT16x16x256", 4))  # fmt: skip
    replayed = sequence(layer, layers=36)
    found = align(names(replayed), grids(len(replayed)), reference(sequence(layer, layers=40)))
    assert found == Refused("it runs more layers than were replayed")


def test_the_same_kernels_on_other_grids_are_refused() -> None:
    known = sequence(FUSED)
    against = reference(known, grids(len(known), 16))
    assert isinstance(align(names(known), grids(len(known), 16), against), Alignment)
    found = align(names(known), grids(len(known), 32), against)
    assert found == Refused("the same kernels ran on grids of another size")


def test_without_grids_on_one_side_names_decide() -> None:
    known = sequence(FUSED)
    found = align(names(known), grids(len(known)), reference(known, grids(len(known), 16)))
    assert isinstance(found, Alignment)
    assert found.covered == 1.0


def test_the_grid_of_attention_may_follow_the_context() -> None:
    layer = (("norm", 1), ("flash_fwd_splitkv_kernel", 2), ("gemm", 3))
    known = sequence(layer)
    sizes = grids(len(known), 8)
    sizes[[name.startswith("flash") for name, _ in known], :] = 64
    found = align(names(known), grids(len(known), 8), reference(known, sizes))
    assert isinstance(found, Alignment)
    assert found.covered == 1.0


def test_attention_may_be_split_on_one_side_only() -> None:
    split = (("norm", 1), ("flash_fwd_splitkv_kernel", 2), ("flash_fwd_splitkv_combine_kernel", 3), ("gemm", 4))
    whole = (("norm", 1), ("flash_fwd_kernel", 2), ("gemm", 4))
    replayed, known = sequence(split), sequence(whole)
    found = align(names(replayed), grids(len(replayed)), reference(known))
    assert isinstance(found, Alignment)
    assert found.covered == 1.0
    for (name, number), at in zip(replayed, found.position.tolist(), strict=True):
        assert at == MISSING if "combine" in name else known[at][1] == number


def test_nothing_to_compare_is_refused() -> None:
    assert isinstance(align([], grids(0), reference(sequence(FUSED))), Refused)


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1, [1]), (5, [8]), (8, [8]), (9, [16]), (17, []), (float("nan"), [1, 8, 16])]
)
def test_the_smallest_captured_size_that_holds_the_tokens_is_asked(tokens: float, expected: list[int]) -> None:
    captured = [reference(sequence(FUSED), tokens=size) for size in (1, 8, 16)]
    assert [one.tokens for one in fitting(captured, tokens)] == expected
