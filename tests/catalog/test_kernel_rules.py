"""The kernel rules: each selects its own example, every recorded name is known, and no name makes them slow."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.engine_kernel_names import COLLECTIVES, NAMES, PUBLIC_PROFILES
from tests.conftest import SHARED, require
from traceanalyzer.analysis.kernels import classify
from traceanalyzer.catalog.kernel_rules import NAME_LIMIT, UNKNOWN, Rule, categories, match, rules
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.trace import read_trace

DTYPES = {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"}
HINTS = {None, "step-start", "step-end", "training"} | {
    f"{p}:{s}" for p in ("prefill", "decode") for s in ("strong", "medium")
}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_every_rule_selects_its_own_example(rule: Rule) -> None:
    assert match(rule.example).id == rule.id
    assert rule.category in categories()
    assert rule.tensor_core in {"yes", "no", "maybe"}
    assert rule.phase_hint in HINTS
    assert rule.source in {"trace", "source", "report", "recalled"}
    assert {dtype for dtype, _ in rule.dtypes} <= DTYPES
    if rule.ignore_case:
        assert rule.pattern.pattern == rule.pattern.pattern.lower(), "matched against lower-cased names"


def test_ids_are_unique_and_every_category_is_used() -> None:
    ids = [rule.id for rule in rules()]
    assert len(ids) == len(set(ids))
    assert {rule.category for rule in rules()} | {"other"} == set(categories())


@pytest.mark.parametrize(("name", "category", "tensor_core", "dtype"), NAMES + PUBLIC_PROFILES)
def test_names_of_engines(name: str, category: str, tensor_core: str, dtype: str | None) -> None:
    found = classify(name)
    assert (found.category, found.tensor_core) == (category, tensor_core)
    if tensor_core != "no" or dtype:
        assert found.dtype == dtype


@pytest.mark.parametrize(("name", "role"), COLLECTIVES)
def test_what_a_communication_kernel_runs(name: str, role: str) -> None:
    assert (match(name).category, match(name).role, match(name).tensor_core) == ("comm", role, "no")


def test_compiled_kernels_named_after_a_neighbouring_collective_do_not_communicate() -> None:
    assert match("triton_poi_fused_add_all_reduce_4").category == "fused_triton"


@pytest.mark.parametrize("name", ["", "x", "my_kernel", "main_kernel0", "\x00\n", "核", "kernel<int, float>(float*)"])
def test_an_unknown_name_is_unknown_not_useful(name: str) -> None:
    assert match(name) is UNKNOWN
    found = classify(name)
    assert (found.category, found.tensor_core, found.dtype, found.phase_hint) == ("other", "maybe", None, None)


def test_names_seen_in_real_traces_are_all_known() -> None:
    file = SHARED / "method" / "real_kernel_names.json"
    require(file.is_file(), "the list of recorded kernel names is not here")
    names = json.loads(file.read_text())
    assert len(names) > 900
    assert [name for name in names if match(name) is UNKNOWN] == []


def test_no_kernel_of_any_trace_is_unknown(traces: Path, expected: dict[str, dict[str, Any]]) -> None:
    """Every readable trace whose contents no other file repeats."""
    seen: set[str] = set()
    for name, entry in expected.items():
        if ".json" not in name or entry["exit"] == 2 or "same_as" in entry or name.startswith("broken-"):
            continue
        try:
            trace = read_trace(traces / name)
        except TraceAnalyzerError:
            continue
        seen.update(trace.text(code) for code in trace.kernels["name"].unique())
    assert len(seen) > 500
    assert sorted(name for name in seen if match(name) is UNKNOWN) == []


def _kernel_times(file: Path) -> dict[str, int]:
    lines = file.read_text().splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("Time (%)"))
    rows = csv.DictReader(io.StringIO("\n".join(lines[header:])))
    return {row["Name"]: int(row["Total Time (ns)"]) for row in rows}


def test_decode_on_a_geforce_card_hardly_uses_tensor_cores(traces: Path) -> None:
    """Shares counted by hand: 49.2 % gemvx (49.6 % with gemmk1, cuBLAS for an inner size of one), 0.5 % tensorop."""
    times = _kernel_times(traces / "nsys-stats-rtx5090-decode.csv")
    total = sum(times.values())
    gemv = sum(ns for name, ns in times.items() if classify(name).category == "gemv")
    tensor = sum(ns for name, ns in times.items() if classify(name).rule in {"tensorop-gemm", "xmma-gemm"})
    outer = sum(ns for name, ns in times.items() if "gemmk1_kernel" in name)
    assert gemv / total == pytest.approx(0.492, abs=0.001)
    assert (gemv + outer) / total == pytest.approx(0.496, abs=0.001)
    assert all(classify(name).tensor_core == "no" for name in times if "gemvx" in name or "gemmk1_kernel" in name)
    assert tensor / total == pytest.approx(0.005, abs=0.001)
    assert all(classify(name).rule != "unknown" for name in times)


def test_prefill_on_a_geforce_card_does(traces: Path) -> None:
    times = _kernel_times(traces / "nsys-stats-rtx5090-prefill.csv")
    assert all(classify(name).rule != "unknown" for name in times)
    tensor = sum(ns for name, ns in times.items() if classify(name).tensor_core == "yes")
    words = ("tensorop", "flash_fwd_kernel", "flash_fwd_splitkv_kernel", "fmha_cutlassF", "xmma_fprop")
    assert tensor == sum(ns for name, ns in times.items() if any(word in name for word in words))


@pytest.mark.parametrize("file", ["nsys-h100-2gpu.sqlite", "nsys-2gpu-transformer.sqlite", "nsys-rtx3080-tiny.sqlite"])
def test_names_recorded_by_nsight(traces: Path, file: str) -> None:
    with sqlite3.connect(f"file:{traces / file}?mode=ro&immutable=1", uri=True) as database:
        names = [row[0] for row in database.execute(
            "select distinct value from StringIds join CUPTI_ACTIVITY_KIND_KERNEL on demangledName = StringIds.id"
        )]  # fmt: skip
    database.close()
    assert names
    for name in names:
        assert match(name) is not UNKNOWN, name
        if "xmma_gemm_f32f32_f32f32" in name:
            assert classify(name).tensor_core == "no"


def _hostile_names() -> set[str]:
    """Each literal a rule looks for, and each example, repeated to 64 KB: what backtracking would choke on."""
    seeds = {rule.example for rule in rules()}
    for rule in rules():
        for part in rule.pattern.pattern.split("|"):
            literal = re.match(r"[\w:<>, ]+", part.lstrip("^").removeprefix(r"\b"))
            if literal:
                seeds.add(literal[0])
    return {(seed * (65_536 // len(seed) + 1))[:65_536] for seed in seeds} | {"a" * 65_536, "<" * 65_536, "_A" * 32_768}


def test_hostile_names_are_classified_in_well_under_a_second() -> None:
    names = _hostile_names()
    assert len(names) > 500
    worst = 0.0
    for name in names:
        start = time.process_time()
        match(name).dtype(name)
        worst = max(worst, time.process_time() - start)
    assert worst < 0.5, f"{worst:.3f} s"


def test_what_decides_stands_before_the_limit() -> None:
    """Cutting a long name must not change its class: the argument list behind the limit names other types."""
    name = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t>>("
    assert classify(name + "float*, " * NAME_LIMIT) == classify(name)
