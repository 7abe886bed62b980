"""The hooks on the engines' own classes, from the unpacked wheels. Expected values are worked out by hand below."""

from __future__ import annotations

import ast
import importlib
import json
import random
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.collect.wheels import ENGINES
from tests.conftest import require
from traceanalyzer.collect.inside import architecture, guard
from traceanalyzer.collect.inside import sglang as sglang_hooks
from traceanalyzer.collect.inside import vllm as vllm_hooks

HERE = Path(__file__).parent
KEYS = (
    "phase", "tokens", "sequences", "context_sum", "query_context_sum", "prefill_tokens", "prefill_sequences",
    "new_sequences",
)  # fmt: skip
NOTHING_MORE = (None,) * 5
# a: 7 of 7, b: 3 after 4 cached. Contexts 7 and 7; 7 x 7 + 3 x 7 = 70.
VLLM = {
    "prefill": ("prefill", 10, 2, 14, 70, 10, 2, 2),
    "decode": ("decode", 2, 2, 16, 16, 0, 0, 0),  # both have 8 now
    "mixed": ("mixed", 7, 2, 15, 45, 6, 1, 1),  # 9 and 6; 1 x 9 + 6 x 6
    "chunk": ("mixed", 5, 2, 20, 50, 4, 1, 0),  # 10 and 10; 1 x 10 + 4 x 10
    "last_token_of_prompt": ("mixed", 2, 2, 20, 20, 1, 1, 0),
    "verify": ("decode", 5, 2, 23, 65, 0, 0, 0),  # 14 and 9; 4 x 14 + 1 x 9
    "resumed": ("prefill", 14, 1, 14, 196, 14, 1, 0),
    "resumed_as_new": ("prefill", 14, 1, 14, 196, 14, 1, 0),
    "warm_up": ("other", None, None, *NOTHING_MORE),
}
SGLANG = {
    "prefill": ("prefill", 10, 2, 14, 70, 10, 2, 1),
    "prefill_without_lists": ("prefill", 10, 2, *NOTHING_MORE),
    "decode": ("decode", 3, 3, 60, 60, 0, 0, 0),
    "mixed": ("mixed", 8, 3, 40, 70, 6, 1, 1),  # 6, 9 and 25; 6 x 6 + 9 + 25
    "idle": ("other", None, None, *NOTHING_MORE),
    "verify": ("decode", 8, 2, 38, 152, 0, 0, 0),  # 30 before, 4 drafts for each of 2; 4 x 38
    "split": ("prefill", None, 1, *NOTHING_MORE),
    "draft": ("draft", 4, 2, *NOTHING_MORE),
    "named": ("prefill", 8, 2, 12, 48, 8, 2, 2),  # 4 and 8; 4 x 4 + 4 x 8
    "named_on": ("prefill", 6, 2, 14, 42, 6, 2, 1),  # 11 and 3; 3 x 11 + 3 x 3
}


def report(engine: str, *options: str) -> dict[str, Any]:
    """What the engine's script printed; it prints the version into the test log."""
    require((ENGINES / engine).is_dir(), f"no unpacked {engine} wheel (`make test` fetches it)")
    command = [sys.executable, str(HERE / f"engine_{engine}.py"), str(ENGINES), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def vllm() -> dict[str, Any]:
    return report("vllm")


@pytest.fixture(scope="module")
def sglang() -> dict[str, Any]:
    return report("sglang")


@pytest.mark.parametrize("case", VLLM)
def test_vllm_step(vllm: dict[str, Any], case: str) -> None:
    assert tuple(vllm["steps"][case][key] for key in KEYS) == VLLM[case]


def test_vllm_worker_still_runs_everything(vllm: dict[str, Any]) -> None:
    assert vllm["ran"] == [*VLLM, "nothing"]
    assert vllm["steps"]["nothing"] is None
    assert vllm["failures"] == {}
    assert (vllm["name"], vllm["pickled"]) == ("Worker.execute_model", True)


@pytest.mark.parametrize("case", SGLANG)
def test_sglang_pass(sglang: dict[str, Any], case: str) -> None:
    assert tuple(sglang["steps"][case][key] for key in KEYS) == SGLANG[case]


def test_sglang_runner_still_runs_everything(sglang: dict[str, Any]) -> None:
    assert sglang["ran"] == list(SGLANG)
    assert sglang["failures"] == {}
    assert (sglang["name"], sglang["pickled"]) == ("ModelRunner.forward", True)


@pytest.mark.parametrize(
    ("engine", "needed"),
    [
        ("vllm", ("Worker.execute_model", "Worker.execute_dummy_batch", "GPUModelRunner.propose_draft_token_ids")),
        ("sglang", ("ModelRunner.forward",)),
    ],
)
def test_hook_targets_exist(engine: str, needed: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    found = report(engine, "hooks")
    there = {name.partition(":")[2] for name, exists in found["targets"].items() if exists}
    with capsys.disabled():
        print(f"\n{engine} {found['version']}: {', '.join(sorted(there))}")
    assert set(needed) <= there
    assert any("raft" in name or "Speculator" in name for name in there)
    assert found["failures"] == {}


def old_output(**requests: tuple[int, int]) -> Any:
    """As before 0.9: a list with one object per known request. name=(computed, scheduled)."""
    return SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=[
            SimpleNamespace(req_id=name, resumed_from_preemption=False, num_computed_tokens=done)
            for name, (done, _) in requests.items()
        ],
        num_scheduled_tokens={name: count for name, (_, count) in requests.items()},
        total_num_scheduled_tokens=sum(count for _, count in requests.values()),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
    )


def test_requests_as_a_list_of_objects() -> None:
    assert vllm_hooks.describe_step(None, old_output(a=(7, 1), b=(8, 1))) == ("decode", 2, 2, 17, 17, 0, 0, 0)
    # 8 and 12; 1 x 8 + 4 x 12
    assert vllm_hooks.describe_step(None, old_output(a=(7, 1), b=(8, 4))) == ("mixed", 5, 2, 20, 56, 4, 1, 0)


def test_batches_of_all_kinds_of_requests() -> None:
    """Against the sums as their definitions have them, one request after the other."""
    chance = random.Random(7)
    for _ in range(300):
        # name, new, computed, scheduled, drafts among them, put out
        rows = [
            (f"r{i}", *chance.choice([(True, chance.randrange(9), chance.randrange(1, 9), 0, 0),
                                      (False, chance.randrange(1, 9), chance.randrange(1, 9), 0, 0),
                                      (False, chance.randrange(1, 9), 1, 0, 5),
                                      (False, chance.randrange(1, 9), 1, 0, 5),
                                      (False, chance.randrange(1, 9), 4, 3, 5)]))
            for i in range(chance.randrange(1, 7))
        ]  # fmt: skip
        known = [row for row in rows if not row[1]]
        output = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=row[0], num_computed_tokens=row[2]) for row in rows if row[1]],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[row[0] for row in known], num_computed_tokens=[row[2] for row in known],
                num_output_tokens=[row[5] for row in known],
            ),
            num_scheduled_tokens={row[0]: row[3] for row in rows},
            total_num_scheduled_tokens=sum(row[3] for row in rows),
            scheduled_spec_decode_tokens={row[0]: [1] * row[4] for row in rows if row[4]},
        )  # fmt: skip
        prompts = [row for row in rows if row[5] == 0]
        assert vllm_hooks.describe_step(None, output) == (
            "prefill" if len(prompts) == len(rows) else "mixed" if prompts else "decode",
            sum(row[3] for row in rows), len(rows), sum(row[2] + row[3] for row in rows),
            sum(row[3] * (row[2] + row[3]) for row in rows), sum(row[3] for row in prompts), len(prompts),
            sum(row[1] for row in rows),
        )  # fmt: skip


def test_an_instance_that_only_encodes_runs_no_tokens() -> None:
    output = old_output(a=(7, 4))
    output.scheduled_encoder_inputs = {"a": [0]}
    encodes = SimpleNamespace(vllm_config=SimpleNamespace(is_mm_encoder_only=True))
    generates = SimpleNamespace(vllm_config=SimpleNamespace(is_mm_encoder_only=False))
    assert vllm_hooks.describe_step(encodes, output) == ("encoder", None, 1, *NOTHING_MORE)
    assert vllm_hooks.describe_step(generates, output) == ("prefill", 4, 1, 11, 44, 4, 1, 0)


FIELDS = {
    "vllm/config/parallel.py:ParallelConfig": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                                               "enable_expert_parallel"),
    "vllm/config/cache.py:CacheConfig": ("cache_dtype", "block_size", "num_gpu_blocks", "enable_prefix_caching"),
    "vllm/config/scheduler.py:SchedulerConfig": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill",
                                                 "async_scheduling"),
    "vllm/config/model.py:ModelConfig": ("model", "dtype", "quantization", "enforce_eager", "hf_text_config"),
    "vllm/config/compilation.py:CompilationConfig": ("cudagraph_mode",),
    "vllm/config/speculative.py:SpeculativeConfig": ("method", "num_speculative_tokens", "draft_model_config"),
    "vllm/v1/kv_cache_interface.py:KVCacheConfig": ("num_blocks", "kv_cache_groups"),
}  # fmt: skip


@pytest.mark.parametrize("place", FIELDS)
def test_facts_read_fields_that_vllm_has(place: str) -> None:
    path, _, name = place.partition(":")
    require((ENGINES / path).is_file(), "no unpacked vllm wheel (`make test` fetches it)")
    tree = ast.parse((ENGINES / path).read_text())
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    targets = [node.target for node in found.body if isinstance(node, ast.AnnAssign)]
    assert set(FIELDS[place]) <= {target.id for target in targets if isinstance(target, ast.Name)}


def test_a_field_that_is_gone_leaves_a_poorer_label() -> None:
    guard.failures.clear()
    strange = SimpleNamespace(total_num_scheduled_tokens=5, num_scheduled_tokens={"a": 5})
    found = vllm_hooks.describe_step(None, strange)
    assert found is not None and found.phase == "other" and found.tokens == 5 and found.context_sum is None
    assert guard.failures["vllm step"][0] == 1
    assert sglang_hooks.describe_forward(None, SimpleNamespace()) == sglang_hooks.OTHER
    guard.failures.clear()


def test_drafts_are_passes_of_their_own() -> None:
    output = old_output(a=(7, 1), b=(8, 1))
    eagle = SimpleNamespace(speculative_config=SimpleNamespace(method="eagle3"))
    ngram = SimpleNamespace(speculative_config=SimpleNamespace(method="ngram"))
    assert vllm_hooks.describe_draft(eagle, output, [[1], [2]]) == ("draft", None, 2, *NOTHING_MORE)
    assert vllm_hooks.describe_draft(ngram, output, [[1], [2]]) is None
    batch = SimpleNamespace(num_reqs=3)
    assert vllm_hooks.describe_speculator(None, batch, num_speculative_tokens=2) == ("draft", None, 3, *NOTHING_MORE)
    assert vllm_hooks.describe_speculator(None, batch, dummy_run=True) is None


CONFIG = SimpleNamespace(
    architectures=["LlamaForCausalLM"], num_hidden_layers=2, hidden_size=8, num_attention_heads=4,
    num_key_value_heads=2, intermediate_size=16, vocab_size=32, tie_word_embeddings=False,
)  # fmt: skip
SHAPE = {
    "name": "tiny-llama", "architecture": "LlamaForCausalLM", "layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2,
    "head_dim": 2, "ffn": 16, "vocab": 32, "tied_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
WEIGHTS = 32 * 8 * 2  # one table in bf16


def test_vllm_facts() -> None:
    # 2 layers of 10 blocks x 4 tokens x (K and V) x 2 heads x 2, two bytes each: 640 bytes a layer, 32 a token.
    caches = [torch.zeros(2, 10, 4, 2, 2, dtype=torch.bfloat16) for _ in range(2)]
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model="/models/someone/tiny-llama/", hf_text_config=CONFIG, dtype=torch.bfloat16, quantization=None,
            enforce_eager=False,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=4, num_gpu_blocks=10, enable_prefix_caching=True),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=2),
        scheduler_config=SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=512, enable_chunked_prefill=True,
                                         async_scheduling=True),
        compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE")),
        speculative_config=None,
    )  # fmt: skip
    runner = SimpleNamespace(
        model=torch.nn.Embedding(32, 8, dtype=torch.bfloat16), kv_caches=[*caches, caches[0][0]],
        kv_cache_config=SimpleNamespace(num_blocks=10, kv_cache_groups=[None]),
    )  # fmt: skip
    worker = SimpleNamespace(vllm_config=config, model_runner=runner, rank=0, local_rank=0)
    found = vllm_hooks.facts(worker)
    model = found.pop("model")
    assert len(model.pop("fingerprint")) == 12
    assert model == {
        **SHAPE, "kv_dtype": "bfloat16", "weight_bytes": WEIGHTS, "parameters": 256, "kv_reserved_bytes": 1280,
        "kv_bytes_per_token": 32,
    }  # fmt: skip
    assert found == {
        "rank": 0, "local_rank": 0, "world_size": 1, "parallel": {"tp": 1, "pp": 1, "dp": 2},
        "engine": {
            "max_num_seqs": 16, "max_num_batched_tokens": 512, "chunked_prefill": True, "async_scheduling": True,
            "prefix_caching": True, "block_size": 4, "cuda_graphs": "FULL_AND_PIECEWISE",
        },
    }  # fmt: skip
    json.dumps(found)


def test_sglang_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 layers of 12 tokens x 2 heads x 2, two bytes each, K and V: 96 x 4 bytes, 32 a token.
    pool = SimpleNamespace(
        k_buffer=[torch.zeros(12, 2, 2, dtype=torch.bfloat16) for _ in range(2)],
        v_buffer=[torch.zeros(12, 2, 2, dtype=torch.bfloat16) for _ in range(2)],
    )
    runner = SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=CONFIG, model_path="someone/tiny-llama", dtype=torch.bfloat16,
                                     quantization="fp8"),
        server_args=SimpleNamespace(tp_size=2, pp_size=1, dp_size=1, chunked_prefill_size=-1,
                                    disable_overlap_schedule=False),
        model=torch.nn.Embedding(32, 8, dtype=torch.bfloat16), token_to_kv_pool=pool, is_draft_worker=False,
        kv_cache_dtype=torch.bfloat16, tp_rank=1, gpu_id=1, max_total_num_tokens=11, page_size=1,
        decode_cuda_graph_runner=None,
    )  # fmt: skip
    found = sglang_hooks.facts(runner)
    model = found.pop("model")
    assert len(model.pop("fingerprint")) == 12
    assert model == {
        **SHAPE, "kv_dtype": "bfloat16", "quantization": "fp8", "weight_bytes": WEIGHTS, "kv_reserved_bytes": 384,
        "kv_bytes_per_token": 32,
    }  # fmt: skip
    assert found == {
        "rank": 1, "local_rank": 1, "world_size": 2, "parallel": {"tp": 2, "pp": 1, "dp": 1},
        "engine": {"max_cached_tokens": 11, "chunked_prefill": False, "async_scheduling": True, "block_size": 1,
                   "cuda_graphs": "NONE"},
    }  # fmt: skip
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: SimpleNamespace(tp_size=4, tp_rank=3)  # type: ignore[attr-defined]
    context.get_schedule = lambda: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, context.__name__, context)
    resolved = sglang_hooks.facts(runner)
    assert (resolved["rank"], resolved["world_size"], resolved["parallel"]["dp"]) == (3, 4, 1)
    assert guard.failures.pop("sglang settings")[0] > 0
    runner.is_draft_worker = True
    assert set(sglang_hooks.facts(runner)) == {"draft_model"}


def test_latent_attention_has_no_key_heads() -> None:
    config = SimpleNamespace(num_attention_heads=16, num_hidden_layers=3, hidden_size=64, kv_lora_rank=32)
    found = architecture.of_config(config, "C:\\models\\deepseek")
    assert found["name"] == "deepseek"
    assert found["kv_lora_rank"] == 32
    assert "kv_heads" not in found and "head_dim" not in found


def test_hooks_name_a_module_a_method_and_a_function() -> None:
    for hooks in (vllm_hooks, sglang_hooks):
        for module, path, describe in hooks.HOOKS:
            assert module.split(".")[0] == hooks.__name__.rpartition(".")[2]
            assert len(path.split(".")) == 2
            assert getattr(importlib.import_module(hooks.__name__), describe.__name__) is describe
