"""What a trace shows of its model, from a few recorded calls."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from traceanalyzer.analysis.model import Observed, observe
from traceanalyzer.trace.tables import MISSING

BF16, BYTE, LONG = "c10::BFloat16", "unsigned char", "long int"
COLUMNS = {"n": MISSING, "k": MISSING, "batch": 1, "heads": MISSING, "kv_heads": MISSING, "head_dim": MISSING,
           "dtype": "bf16", "role": "gemm"}  # fmt: skip


def seen(
    rows: list[dict[str, object]], recording: Recording | None = None, steps: int = 1, layers: int | None = 2
) -> Observed:
    recording = recording or Recording()
    names = [recording.code(str(row.get("name", "kernel"))) for row in rows]
    work = pd.DataFrame([{**COLUMNS, **{key: value for key, value in row.items() if key != "name"}} for row in rows])
    activity = pd.DataFrame({"name": np.array(names, np.int64), "duration_ns": 100})
    return observe(recording.trace(), activity, work, steps, layers)


def gemm(n: int, k: int, **more: object) -> dict[str, object]:
    return {"category": "gemm", "n": n, "k": k, **more}


LAYERS = [gemm(6144, 1024), gemm(1024, 3072), gemm(6144, 1024), gemm(1024, 3072)]


def test_the_widest_product_that_runs_once_a_step_is_the_output_layer() -> None:
    found = seen([*LAYERS, gemm(9000, 1024)])
    assert (found.head_rows, found.hidden, found.dtype) == (9000, 1024, "bf16")


@pytest.mark.parametrize(
    ("rows", "layers"),
    [
        (LAYERS, 2),  # what is widest runs once a layer
        (LAYERS[:2], 1),  # a layer's product, in a window that holds one layer
        (LAYERS[:2], None),
        ([*LAYERS, gemm(7000, 1024)], 2),  # hardly wider than the layers'
        ([gemm(40_000, 30_000)], 2),  # no output layer is nearly square
        ([gemm(50_000, 1024, batch=8)], 2),
    ],
)
def test_a_product_of_a_layer_is_no_output_layer(rows: list[dict[str, object]], layers: int | None) -> None:
    found = seen(rows, layers=layers)
    assert (found.head_rows, found.hidden) == (None, None)


def test_alone_only_a_width_that_no_layer_has_tells() -> None:
    assert seen([gemm(201_088, 2880)]).head_rows == 201_088
    assert seen([gemm(16_384, 2880)]).head_rows is None


def test_the_largest_table_is_the_embedding() -> None:
    recording = Recording()
    for table in ([2048, 512], [50_000, 512], [16, 90_000]):
        recording.op("aten::embedding", 0, 1, [table, [4], [], [], []], [BF16, LONG, "", "", ""])
    found = seen(LAYERS, recording)
    assert (found.table_rows, found.hidden, found.dtype) == (50_000, 512, "bf16")


def test_kv_writes_tell_the_heads_and_the_type_of_the_cache() -> None:
    recording = Recording()
    dims = [[4, 8, 128], [4, 8, 128], [90, 16, 8, 128], [90, 16, 8, 128], [4], [], [], []]
    recording.op(
        "_C_cache_ops::reshape_and_cache_flash", 0, 1, dims, [BF16, BF16, BYTE, BYTE, LONG, "", "float", "float"]
    )
    attention = {"category": "attention", "heads": 32, "kv_heads": 32, "head_dim": 128}
    found = seen([*LAYERS, attention], recording)
    assert (found.heads, found.kv_heads, found.head_dim, found.kv_dtype) == (32, 8, 128, "fp8")


def test_the_name_of_a_replayed_kv_write_tells_its_type() -> None:
    name = "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>(x)"
    assert seen([{"name": name, "category": "kv_cache"}]).kv_dtype == "fp8"
    assert seen([{"name": "reshape_and_cache_kernel_flash", "category": "kv_cache"}]).kv_dtype is None


@pytest.mark.parametrize(("calls", "reduces"), [(0, False), (1, False), (2, True), (4, True)])
def test_communication_in_every_layer(calls: int, reduces: bool) -> None:
    assert seen([*LAYERS, *[{"category": "comm"}] * calls]).reduces == reduces


def test_how_weights_are_stored_by_names_and_types() -> None:
    unknown = {"dtype": None}
    rows = [
        gemm(1, 1, name="nvjet_tst_192x8"),
        gemm(1, 1, name="void marlin::Marlin<__nv_bfloat16>", role="w4a16-marlin"),
        gemm(1, 1, name="int8_thing", **unknown),
        gemm(1, 1, name="a product", **unknown),
        {"category": "moe", "role": "routing", "name": "fp8_topk"},
    ]
    found = seen(rows)
    assert (found.packed_share, found.plain_share) == (0.5, 0.25)
    assert (found.routes, found.expert_packed_share, found.expert_plain_share) == (True, 0.0, 0.0)
    experts = [{"category": "moe", "name": "_matmul_ogs_bf16xbf16xmxfp4"}, {"category": "moe", "name": "x", **unknown}]
    assert seen([*rows, *experts]).expert_packed_share == 1.0


def test_an_empty_trace_shows_nothing() -> None:
    assert seen([{"category": "copy", "dtype": None}], steps=0, layers=None) == Observed()
