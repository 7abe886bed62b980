"""The GPU catalogue: figures against the rate table and published numbers, identification of real devices."""

from __future__ import annotations

import json
import time
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer.catalog.gpus import BY_NAME, BY_PROPERTIES, Gpu, find, gpus, identify
from traceanalyzer.errors import UnknownGPUError
from traceanalyzer.trace import read_trace

DATA = json.loads(resources.files("traceanalyzer.catalog").joinpath("gpus.json").read_text(encoding="utf-8"))
ENTRIES = {entry["id"]: entry for entry in DATA["gpus"]}
DTYPES = {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"}


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.id)
def test_every_entry_is_whole(gpu: Gpu) -> None:
    assert gpu.names
    assert gpu.vendor in {"nvidia", "amd"}
    assert gpu.confidence in {"high", "medium", "low", "computed", "recalled"}
    assert gpu.sources
    assert 1 <= gpu.num_sms <= 400
    assert 50 < gpu.bandwidth_gbs <= 8200
    assert "fp32" in gpu.vector_tflops
    assert set(gpu.tensor_tflops) <= DTYPES
    assert set(gpu.vector_tflops) <= DTYPES
    assert all(0 < reached < gpu.tensor_tflops[dtype] for dtype, reached in gpu.achievable_tflops.items())
    assert not gpu.achievable_tflops or gpu.achievable_source
    assert gpu.achievable_gbs is None or gpu.achievable_gbs < gpu.bandwidth_gbs


def test_ids_and_names_are_unambiguous() -> None:
    ids = [gpu.id for gpu in gpus()]
    assert len(ids) == len(set(ids))
    boards: dict[tuple[str, int, tuple[int, ...]], str] = {}
    for gpu in gpus():
        for name in gpu.names:
            key = (name, gpu.num_sms, gpu.memory_sizes)
            assert key not in boards, f"{gpu.id} and {boards[key]} cannot be told apart"
            boards[key] = gpu.id


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry["id"])
def test_stated_peaks_follow_the_rate_table(entry: dict[str, Any]) -> None:
    """num_sms x FLOPs/clock/SM x clock within 3.5 %, except where the data says the card departs from its family."""
    if entry["boost_mhz"] is None:
        assert entry["confidence"] == "low"
        return
    rate, departs = DATA["flops_per_clock"][entry["rate"]], set(entry.get("not_by_formula", ()))
    for kind, clock in (("tensor", entry["tensor_mhz"]), ("vector", entry["boost_mhz"])):
        for dtype, stated in entry.get(f"{kind}_tflops", {}).items():
            clocks = {clock, entry["boost_mhz"]} if dtype == "fp64" else {clock}
            formula = [entry["num_sms"] * rate[kind][dtype] * mhz * 1e-6 for mhz in clocks]
            near = any(value == pytest.approx(stated, rel=0.035) for value in formula)
            assert near or dtype in departs or stated < 2, (kind, dtype, stated, formula)


@pytest.mark.parametrize(
    ("gpu_id", "dtype", "tflops"),
    [
        # printed dense figures with fp32 accumulate (half of the fp16-accumulate figures on GeForce sheets)
        ("rtx-2080-ti", "fp16", 53.8),
        ("titan-rtx", "fp16", 130.5),
        ("quadro-rtx-8000", "fp16", 130.5),
        ("rtx-3080", "bf16", 59.5),
        ("rtx-3090-ti", "fp16", 80.0),
        ("rtx-a5000", "fp16", 111.1),
        ("rtx-a4000", "bf16", 76.7),
        ("rtx-4080", "fp16", 97.5),
        ("rtx-4070-ti", "fp8", 160.4),
        ("rtx-5000-ada", "fp8", 522.2),
        ("rtx-5080", "fp16", 112.6),
        ("rtx-5070", "bf16", 61.7),
        ("a2", "fp16", 18.1),
        ("p100-sxm2-16gb", "fp16", None),
    ],
)
def test_computed_tensor_peaks_against_printed_figures(gpu_id: str, dtype: str, tflops: float | None) -> None:
    peak = find(gpu_id).peak_tflops(dtype, tensor_core=True)
    assert peak is None if tflops is None else peak == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("gpu_id", "dtype", "tflops"),
    [
        ("p100-sxm2-16gb", "fp32", 10.6),
        ("p100-sxm2-16gb", "fp16", 21.2),
        ("p100-sxm2-16gb", "fp64", 5.3),
        ("gp100", "fp32", 10.3),
        ("p40", "fp32", 11.76),
        ("p4", "fp32", 5.44),
        ("gtx-1080-ti", "fp32", 11.34),
        ("gtx-1660-ti", "fp32", 5.44),
        ("rtx-4090-laptop", "fp32", 39.7),
        ("rtx-3060", "fp32", 12.74),
        ("m40", "fp32", 6.84),
    ],
)
def test_computed_vector_peaks_against_printed_figures(gpu_id: str, dtype: str, tflops: float) -> None:
    assert find(gpu_id).peak_tflops(dtype, tensor_core=False) == pytest.approx(tflops, rel=0.02)


def test_peaks_by_dtype() -> None:
    v100, h100, a100 = find("v100-sxm2-16gb"), find("h100-sxm-80gb"), find("a100-sxm4-80gb")
    assert v100.peak_tflops("fp16", tensor_core=True) == 125.0
    assert v100.peak_tflops("bf16", tensor_core=True) is None
    assert v100.peak_tflops("fp32", tensor_core=True) is None
    assert a100.peak_tflops("fp32", tensor_core=True) == 156.0  # tf32
    assert a100.peak_tflops("fp32", tensor_core=False) == 19.5
    assert a100.peak_tflops("fp8", tensor_core=True) is None
    assert h100.peak_tflops("fp8", tensor_core=True) == 1978.9
    assert h100.peak_tflops("tf32", tensor_core=False) is None
    assert h100.peak_tflops("fp8", tensor_core=False) == 66.9  # widened to fp32
    assert find("mi300x").peak_tflops("fp32", tensor_core=True) == 163.4  # matrix cores multiply fp32 itself
    assert find("p40").peak_tflops("fp16", tensor_core=False) == pytest.approx(11.76, rel=0.01)  # native is 1/64 of it
    assert h100.peak_tflops("int4", tensor_core=True) is None


@pytest.mark.parametrize("prefix", ["p100", "p4", "gp100", "gtx-", "titan-x", "m40"])
def test_cards_without_tensor_cores(prefix: str) -> None:
    cards = [gpu for gpu in gpus() if gpu.id.startswith(prefix)]
    assert cards
    assert not any(card.has_tensor_cores or card.achievable_tflops for card in cards)
    assert all(card.note and "no tensor cores" in card.note for card in cards)


def test_tensor_cores_of_unknown_speed() -> None:
    """A card whose tensor rate is cut by an amount nobody printed has tensor cores, but no peak for them."""
    cut, whole = find("rtx-5090-d"), find("rtx-5090")
    assert cut.has_tensor_cores
    assert all(cut.peak_tflops(dtype, tensor_core=True) is None for dtype in DTYPES)
    assert cut.peak_tflops("fp32", tensor_core=False) == pytest.approx(104.8, rel=0.01)
    assert cut.note
    assert "tensor peaks are unknown" in cut.note
    assert whole.peak_tflops("bf16", tensor_core=True) == 209.5
    for name, gpu_id in (("NVIDIA GeForce RTX 5090 D", "rtx-5090-d"), ("NVIDIA GeForce RTX 5090", "rtx-5090")):
        found = identify(name, "12.0", 170, 34_190_917_632, 32)
        assert found
        assert found[0].id == gpu_id


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        # boards whose clocks differ from those of the board of almost the same name
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "fp4", 3511 / 2),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "fp4", 4000 / 2),
        ("Tesla V100-SXM3-32GB", "fp16", 131),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
    ],
)
def test_boards_with_clocks_of_their_own(name: str, dtype: str, tflops: float) -> None:
    found = identify(name, None, None, None, None)
    assert found
    assert found[0].peak_tflops(dtype, tensor_core=True) == pytest.approx(tflops, rel=0.01)


def test_ridge_points() -> None:
    """Bf16 dense FLOP per byte where compute and memory roofs meet, as published analyses give them."""
    published = {"a100-sxm4-40gb": 201, "a100-sxm4-80gb": 153, "l4": 403, "h100-sxm-80gb": 295, "h20": 37,
                 "h200-sxm": 206, "b200": 281, "mi300x": 247}  # fmt: skip
    for gpu_id, ridge in published.items():
        gpu = find(gpu_id)
        assert gpu.tensor_tflops["bf16"] * 1e3 / gpu.bandwidth_gbs == pytest.approx(ridge, rel=0.01)


def test_find() -> None:
    assert find(" RTX-4090 ").names == ("NVIDIA GeForce RTX 4090",)
    with pytest.raises(UnknownGPUError) as caught:
        find("rtx-4090ti")
    assert caught.value.hint
    assert "rtx-4090" in caught.value.hint
    assert "traceanalyzer gpus" in caught.value.hint
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownGPUError) as caught:
        find("\x00" * 100_000)
    assert len(str(caught.value)) < 1000


def test_every_trace_with_a_known_gpu(traces: Path, expected: dict[str, dict[str, Any]]) -> None:
    known = {name: entry["gpu"] for name, entry in expected.items() if "gpu" in entry}
    assert len(known) >= 6
    for name, gpu_id in known.items():
        for one in read_trace(traces / name).metadata.devices:
            capability = f"{one.compute_major}.{one.compute_minor}"
            found = identify(one.name, capability, one.num_sms, one.memory_bytes, one.warp_size)
            assert found, name
            assert found[0].id == gpu_id, name
            assert found[1] == (BY_NAME if one.name else BY_PROPERTIES), name


@pytest.mark.parametrize(
    ("properties", "gpu_id", "how"),
    [
        # device blocks as real traces hold them
        (("Quadro GP100", "6.0", 56, 17069309952, 32), "gp100", BY_NAME),
        (("NVIDIA A10G", "8.6", 80, 23696375808, 32), "a10g", BY_NAME),
        # ECC kept inline leaves 22.07 of 24 GiB
        (("", "8.6", 80, 23696375808, 32), "a10g", f"{BY_PROPERTIES} (also fits rtx-a5500)"),
        (("NVIDIA GeForce RTX 4060", "8.9", 24, 8585084928, 32), "rtx-4060", BY_NAME),
        (("NVIDIA H800", "9.0", 132, 84943110144, 32), "h800-sxm", BY_NAME),
        (("Tesla V100-DGXS-32GB", "7.0", 80, 34084028416, 32), "v100-dgxs-32gb", BY_NAME),
        (("NVIDIA A100-PG509-200", "8.0", 108, 42505273344, 32), "a100-sxm4-40gb", BY_NAME),
        ((None, "9.4", 304, 206141652992, 64), "mi300x", BY_PROPERTIES),
        (("AMD Instinct MI300X VF", "9.4", 304, 205571227648, 64), "mi300x", BY_NAME),
        # decorated names
        (("Tesla T4", "7.5", 40, 15828320256, 32), "t4", BY_NAME),
        (("GeForce RTX 3090", "8.6", 82, 25447170048, 32), "rtx-3090", BY_NAME),
        (("NVIDIA Tesla V100-SXM2-16GB", "7.0", 80, 16945512448, 32), "v100-sxm2-16gb", BY_NAME),
        (("NVIDIA A40-48Q", "8.6", 84, 51527024640, 32), "a40", BY_NAME),
        # one name, two boards
        (("NVIDIA GeForce RTX 3080", "8.6", 68, 10500000000, 32), "rtx-3080", BY_NAME),
        (("NVIDIA GeForce RTX 3080", "8.6", 70, 12600000000, 32), "rtx-3080-12gb", BY_NAME),
        (("NVIDIA GeForce RTX 3060", "8.6", 28, 8589410304, 32), "rtx-3060-8gb", BY_NAME),
        (("NVIDIA GeForce RTX 3060", "8.6", None, None, None), "rtx-3060", BY_NAME),
    ],
)
def test_identify(properties: tuple[Any, ...], gpu_id: str, how: str) -> None:
    found = identify(*properties)
    assert found
    assert (found[0].id, found[1]) == (gpu_id, how)


def test_an_ambiguous_match_says_what_else_fits() -> None:
    found = identify("AMD Radeon Graphics", "9.0", 104, 68702699520, 64)
    assert found
    assert {found[0].id} | set(found[1].split("also fits ")[1].rstrip(")").split(", ")) == {"mi210", "mi250-gcd"}


def test_the_warp_size_tells_the_vendor() -> None:
    """AMD's gfx90a and NVIDIA's Hopper both report 9.0."""
    hopper = identify("", "9.0", 132, 85018279936, 32)
    assert hopper
    assert hopper[0].id == "h100-sxm-80gb"
    assert identify("", "9.0", 132, 85018279936, 64) is None


@pytest.mark.parametrize(
    "properties",
    [
        (None, None, None, None, None),
        ("", "9.9", 10, 1 << 30, 32),
        ("NVIDIA H100 80GB HBM4 Ultra", None, None, None, None),
        ("", "9.0", 132, 40 << 30, 32),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "8.0", None, None, 32),
        ("NVIDIA Never Heard Of MIG 1g.5gb", "8.0", 108, 42505273344, 32),
    ],
)
def test_unknown_stays_unknown(properties: tuple[Any, ...]) -> None:
    assert identify(*properties) is None


def test_a_mig_slice_gets_its_share() -> None:
    found = identify("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "8.0", 42, 20937965568, 32)
    assert found
    gpu, how = found
    assert gpu.id == "a100-sxm4-40gb:3g.20gb"
    assert gpu.tensor_tflops["bf16"] == pytest.approx(312 * 42 / 108)
    assert gpu.bandwidth_gbs == pytest.approx(1555 / 2)
    assert gpu.confidence == "computed"
    assert how == "name, scaled to 42 of 108 SMs"


@pytest.mark.parametrize("sms", [0, -5, 133, 10**6])
def test_an_impossible_sm_count_gives_no_more_than_the_card(sms: int) -> None:
    assert identify("NVIDIA H100 80GB HBM3", "9.0", sms, 85_000_000_000, 32) == (find("h100-sxm-80gb"), BY_NAME)
    assert identify("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "9.0", sms, None, 32) is None
    assert identify("some card", "9.0", sms, -1, 32) is None


def test_a_name_beyond_all_reason_takes_no_time() -> None:
    begin = time.process_time()
    assert identify("nvidia " * 20_000, None, None, None, None) is None
    assert identify("x" + " vf" * 60, None, None, None, None) is None
    assert time.process_time() - begin < 0.5
    long = identify("NVIDIA H100 80GB HBM3 MIG 1g." + "9" * 5000 + "gb", "9.0", 16, None, 32)
    assert long is not None
    assert 0 < long[0].bandwidth_gbs <= find("h100-sxm-80gb").bandwidth_gbs


def test_a_partitioned_card_gets_its_share() -> None:
    """An MI300X split into eight reports its own name with 38 CUs and 24 GB."""
    found = identify("AMD Instinct MI300X", "9.4", 38, 25769803776, 64)
    assert found
    assert found[0].tensor_tflops["bf16"] == pytest.approx(1307.4 / 8)
    assert found[0].bandwidth_gbs == pytest.approx(5300 / 8)
