"""What a device holds and how many sequences fit, from a recorder's block, from shapes, from reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.analysis.lines import BYTES_PER_NS, device, line, told
from tests.analysis.recorded import Recording
from traceanalyzer.analysis import floor, held, memory
from traceanalyzer.analysis.forecast import step_model
from traceanalyzer.analysis.ledger import account
from traceanalyzer.analysis.timeline import Timeline

GB = 10**9
FLASH = "_C_cache_ops::reshape_and_cache_flash"
BF16, BYTE, LONG = "c10::BFloat16", "unsigned char", "long int"


def timeline(
    model: Mapping[str, object] | None = None,
    recording: Recording | None = None,
    op: int = -1,
    memory_bytes: int | None = 80 * GB,
    world_size: int | None = None,
) -> Timeline:
    """One decode step of 4 sequences with 4,000 tokens of context, which reads 40 MB of cache."""
    rows = [
        {"start": 0, "duration": 100_000, "category": "gemm", "weight_bytes": 16.0 * GB, "step": 0},
        {"start": 100_000, "duration": 50_000, "category": "attention", "kv_bytes": 40e6, "bytes": 50e6, "step": 0},
        {"start": 150_000, "duration": 1_000, "category": "kv_cache", "op": op, "step": 0},
    ]
    steps = [{"phase": "decode", "start": 0, "end": 151_000, "tokens": 4, "sequences": 4, "context_sum": 4_000}]
    built = line(rows, steps=steps, info=device(memory_bytes=memory_bytes))
    return told(replace(built, trace=recording.trace()) if recording else built, model, world_size)


def use(found: Timeline, read: float | None = 16.0 * GB) -> memory.Memory | None:
    return memory.use(found, held.weights(found, read), step_model(found, account(found), "decode"))


def test_the_recorders_weights_and_cache_come_first() -> None:
    facts = {"parameters": 8 * GB, "dtype": "torch.bfloat16", "layers": 32, "kv_heads": 8, "head_dim": 128}
    found = use(timeline(facts))
    assert found is not None
    assert found.weight_bytes == 16 * GB
    assert found.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert found.kv_used_bytes == 131_072 * 4_000
    # 0.9 x 80 GB less 16 GB of weights leave 56 GB for sequences of 1,000 tokens
    assert found.max_sequences == 56 * GB // (131_072 * 1_000)
    assert found.free_bytes == 80 * GB - 16 * GB - 131_072 * 4_000
    assert (found.source, found.confidence) == ("recorder", 0.9)


@pytest.mark.parametrize(
    ("facts", "world_size", "expected"),
    [
        ({"weight_bytes": 7.5 * GB, "parameters": 8 * GB, "dtype": "bf16"}, None, 7.5 * GB),
        ({"parameters": 8 * GB, "dtype": "bf16"}, 4, 16.0 * GB),  # a fourth of them may be here: what is read
        ({"parameters": 8 * GB, "dtype": "bf16", "quantization": "int8"}, None, 16.0 * GB),
        ({"parameters": 8 * GB, "dtype": "strange"}, None, 16.0 * GB),
        ({"parameters": True, "dtype": "bf16"}, None, 16.0 * GB),
        (None, None, 16.0 * GB),
    ],
)
def test_weights_of_a_recorder_that_does_not_say_enough_are_those_read(
    facts: Mapping[str, object] | None, world_size: int | None, expected: float
) -> None:
    found = held.weights(timeline(facts, world_size=world_size), 16.0 * GB)
    assert found is not None
    assert found.held == expected


def embedded() -> Recording:
    recording = Recording()
    recording.op("aten::embedding", 0, 10, [[128_256, 4_096], [4, 1], [], [], []], [BF16, LONG, "", "", ""])
    return recording


@pytest.mark.parametrize(
    ("tied", "expected", "assumption"),
    [
        (False, 16.0 * GB + 128_256 * 4_096 * 2, "held_is_read_and_embedding"),
        (True, 16.0 * GB, "held_is_read"),
        (None, 16.0 * GB, "held_at_least_read"),
    ],
)
def test_an_input_embedding_of_its_own_is_held_too(tied: bool | None, expected: float, assumption: str) -> None:
    found = held.weights(
        timeline({"name": "m"} | ({} if tied is None else {"tied_embeddings": tied}), embedded()), 16.0 * GB
    )
    assert found is not None
    assert found.held == expected
    assert assumption in found.assumptions


def test_nothing_read_and_nothing_recorded_is_not_known() -> None:
    assert held.weights(timeline(), None) is None


def written(blocks: int) -> Recording:
    """A KV write of 4 tokens, 8 heads of 128, into a pool of 8-bit blocks of 16 tokens."""
    recording = Recording()
    dims = [[4, 8, 128], [4, 8, 128], [blocks, 16, 8, 128], [blocks, 16, 8, 128], [4], [], [], []]
    recording.op(FLASH, 0, 10, dims, [BF16, BF16, BYTE, BYTE, LONG, "", "float", "float"])
    return recording


def test_a_kv_write_tells_the_cache_and_its_pool() -> None:
    found = use(timeline(recording=written(1_000_000), op=0))
    assert found is not None
    assert found.kv_bytes_per_token == 2 * 8 * 128  # one write a step
    assert found.kv_reserved_bytes == 2 * 1_000_000 * 16 * 8 * 128
    assert found.free_bytes == pytest.approx(80 * GB - 16 * GB - 32.768 * GB)
    assert found.max_sequences == int((72 * GB - 16 * GB) / (2_048 * 1_000))


def test_a_pool_larger_than_the_device_is_shared_by_layers() -> None:
    found = use(timeline(recording=written(5_000_000), op=0))
    assert found is not None
    assert found.kv_reserved_bytes is None
    assert "kv_pool_shared" in found.assumptions


def test_without_writes_the_cache_is_what_is_read() -> None:
    found = use(timeline())
    assert found is not None
    assert found.kv_bytes_per_token == 40e6 / 4_000
    assert found.kv_reserved_bytes is None
    assert found.source == "shapes"


def test_a_device_of_unknown_size_has_no_room_and_nothing_free() -> None:
    found = use(timeline(memory_bytes=None))
    assert found is not None
    assert (found.total_bytes, found.max_sequences, found.free_bytes) == (None, None, None)


def test_weights_that_do_not_fit_leave_no_room() -> None:
    found = use(timeline(), 75.0 * GB)
    assert found is not None
    assert found.max_sequences == 0


def test_neither_weights_nor_cache_is_no_memory() -> None:
    built = line([{"start": 0, "duration": int(BYTES_PER_NS)}])
    assert memory.use(built, None, None) is None


GRAPH = {
    "parameters": 8 * GB, "dtype": "bf16", "vocab": 128_000, "hidden": 4_096, "tied_embeddings": False,
    "layers": 32, "kv_heads": 8, "head_dim": 128,
}  # fmt: skip


def replayed(facts: Mapping[str, object]) -> Timeline:
    """A decode step whose product has no shapes."""
    rows = [{"start": 0, "duration": 20_000_000, "category": "gemm", "step": 0}]
    steps = [{"phase": "decode", "start": 0, "end": 20_000_000, "tokens": 4, "sequences": 4, "context_sum": 4_000}]
    return told(line(rows, steps=steps), facts)


def test_a_replayed_step_has_the_floor_of_the_recorded_model() -> None:
    found = floor.decode_floor(replayed(GRAPH))
    assert found is not None
    assert found.weight_bytes == 16 * GB - 128_000 * 4_096 * 2
    assert found.kv_bytes == 2 * 32 * 8 * 128 * 2 * 4_000
    assert found.bytes_ns == pytest.approx((found.weight_bytes + found.kv_bytes) / BYTES_PER_NS)
    assert (found.source, found.confidence) == ("model-config", 0.7)
    assert "bytes_from_model" in found.assumptions


@pytest.mark.parametrize(
    "more",
    [
        {"experts": 64}, {"parameters": None}, {"vocab": None}, {"quantization": "int4"},
        {"tied_embeddings": None}, {"tied_embeddings": "unknown"},
    ],
)  # fmt: skip
def test_a_model_that_is_not_described_well_enough_gives_no_floor(more: Mapping[str, object]) -> None:
    found = floor.decode_floor(replayed(GRAPH | dict(more)))
    assert found is not None
    assert (found.weight_bytes, found.floor_ns, found.source) == (None, None, "none")


def test_the_kernels_of_a_replayed_step_share_the_models_work_by_their_time() -> None:
    rows = [
        {"start": 0, "duration": 15_000_000, "category": "gemm", "dtype": "bf16", "step": 0},
        {"start": 15_000_000, "duration": 5_000_000, "name": 1, "category": "gemm", "dtype": "bf16", "step": 0},
        {"start": 20_000_000, "duration": 1_000_000, "name": 2, "category": "attention", "dtype": "bf16", "step": 0},
    ]
    steps = [{"phase": "decode", "start": 0, "end": 21_000_000, "tokens": 4, "sequences": 4, "context_sum": 4_000}]
    built = line(rows, steps=steps)
    recorded = told(built, GRAPH | {"heads": 32})
    found = step_model(recorded, account(recorded), "decode")
    assert found is not None
    assert found.described
    shared = found.rows.set_index("name")
    read = 16 * GB - 128_000 * 4_096 * 2
    assert shared.loc[0, "weight_bytes"] == pytest.approx(read * 3 / 4)
    assert shared.loc[1, "flops"] == pytest.approx(read / 4 / 2 * 2 * 4)  # 2 bytes each, 2 FLOPs for each of 4 tokens
    assert shared.loc[0, "memory_ns"] == pytest.approx(read * 3 / 4 / BYTES_PER_NS)
    assert shared.loc[2, "kv_bytes"] == 131_072 * 4_000
    assert shared.loc[2, "flops"] == pytest.approx(4 * 32 * 4_000 * 128 * 32)  # 4 H k d in each of 32 layers
    assert found.known_share == 1.0
    bare = step_model(built, account(built), "decode")
    assert bare is not None
    assert not bare.described
    assert bare.known_share == 0.0
