"""The hooks on the engines' own classes, from the unpacked wheels. Expected values are worked out by hand below."""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.collect.runtime import Runtime, Step
from tests.collect.wheels import ENGINES
from tests.conftest import require
from traceanalyzer.collect.inside import architecture, guard
from traceanalyzer.collect.inside import sglang as sglang_hooks
from traceanalyzer.collect.inside import vllm as vllm_hooks

HERE = Path(__file__).parent
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


@dataclass(frozen=True)
class Run:
    """What a script told, what its process left in its ring and in its hello file."""

    told: dict[str, Any]
    steps: list[Step]
    hello: dict[str, Any]


def run(engine: str, folder: Path, *options: str) -> Run:
    """Run the script of an engine under the boot, on the unpacked wheel."""
    require((ENGINES / engine).is_dir(), f"no unpacked {engine} wheel (`make test` fetches it)")
    runtime = Runtime(folder / "runtime")
    done = runtime.run(str(HERE / f"engine_{engine}.py"), str(ENGINES), *options)
    assert done.returncode == 0, done.stderr[-3000:]
    return Run(json.loads(done.stdout.splitlines()[-1]), runtime.steps(), runtime.process())


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run("vllm", tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run("sglang", tmp_path_factory.mktemp("sglang"))


def record_of(expected: tuple[Any, ...]) -> tuple[Any, ...]:
    """A ring has no unknown: its fields are 0 then."""
    phase, tokens, sequences, context, pairs, prompt_tokens, _, new = expected
    prompt_tokens = tokens if phase == "prefill" and prompt_tokens is None else prompt_tokens
    return phase, *(value or 0 for value in (tokens, sequences, context, pairs, prompt_tokens, new))


def label_of(number: int, expected: tuple[Any, ...]) -> str:
    """The label as the analysis documents it."""
    phase, tokens, sequences, context, pairs, prompt_tokens, prompts, _ = expected
    named = {"n": number, "tokens": tokens, "seqs": sequences, "ctx": context, "qk": pairs}
    if phase == "mixed":
        named.update(prefill_tokens=prompt_tokens, decode_tokens=tokens - prompt_tokens)
        named.update(prefill_seqs=prompts, decode_seqs=sequences - prompts)
    return f"ta.step[{' '.join([phase, *(f'{name}={value}' for name, value in named.items() if value is not None)])}]"


def check_steps(found: Run, expected: list[tuple[Any, ...]]) -> None:
    """The ring's records and the labels, one by one."""
    for step, label, one in zip(found.steps, found.told["labels"], expected, strict=True):
        recorded = (*step.sums, step.prefill_tokens, step.new_sequences)
        assert recorded == record_of(one)
        number = int(re.findall(r" n=(\d+)", label)[0])
        assert label == label_of(number, one)
    assert found.hello["failures"] == []


def test_vllm_steps(vllm: Run) -> None:
    check_steps(vllm, [*VLLM.values(), ("other", None, None, *NOTHING_MORE)])  # last: the pass without requests
    assert vllm.told["ran"] == [*VLLM, "nothing", "dummy"]


def test_sglang_passes(sglang: Run) -> None:
    check_steps(sglang, list(SGLANG.values()))
    assert sglang.told["ran"] == list(SGLANG)


def test_the_methods_keep_their_names_and_the_classes_pickle(vllm: Run, sglang: Run) -> None:
    assert [vllm.told[key] for key in ("method", "wrapped", "pickled")] == ["Worker.execute_model", True, True]
    assert [sglang.told[key] for key in ("method", "wrapped", "pickled")] == ["ModelRunner.forward", True, True]


@pytest.mark.parametrize(
    ("engine", "needed"),
    [
        ("vllm", ("Worker.execute_model", "Worker.execute_dummy_batch", "GPUModelRunner.propose_draft_token_ids")),
        ("sglang", ("ModelRunner.forward",)),
    ],
)
def test_hook_targets_exist(
    engine: str, needed: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(engine, tmp_path, "hooks")
    there = {name.partition(":")[2] for name, exists in found.told["targets"].items() if exists}
    with capsys.disabled():
        print(f"\n{engine} {found.told['version']}: {', '.join(sorted(there))}")
    assert set(needed) <= there
    assert any("raft" in name or "Speculator" in name for name in there)
    assert found.hello["failures"] == []
    expected = VLLM if engine == "vllm" else SGLANG
    assert {step.sums for step in found.steps} >= {record_of(one)[:5] for one in expected.values()}


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


SHAPE = {
    "name": "tiny-llama", "architecture": "LlamaForCausalLM", "layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2,
    "head_dim": 2, "ffn": 16, "vocab": 32, "tied_embeddings": False, "dtype": "bfloat16", "kv_dtype": "bfloat16",
    "weight_bytes": 32 * 8 * 2,
}  # fmt: skip
FACTS = ("rank", "local_rank", "world_size", "parallel", "engine")


def test_vllm_facts(vllm: Run) -> None:
    # 2 layers of 10 blocks x 4 tokens x (K and V) x 2 heads x 2, two bytes each: 640 bytes a layer, 32 a token.
    model = dict(vllm.hello["model"])
    assert len(model.pop("fingerprint")) == 12
    assert model == {**SHAPE, "parameters": 256, "kv_reserved_bytes": 1280, "kv_bytes_per_token": 32}
    engine = {
        "max_num_seqs": 16, "max_num_batched_tokens": 512, "chunked_prefill": True, "async_scheduling": True,
        "prefix_caching": True, "block_size": 4, "cuda_graphs": "FULL_AND_PIECEWISE",
    }  # fmt: skip
    assert [vllm.hello[key] for key in FACTS] == [0, 0, 1, {"tp": 1, "pp": 1, "dp": 2}, engine]
    assert "draft_model" not in vllm.hello


def test_sglang_facts(sglang: Run) -> None:
    # 2 layers of 12 tokens x 2 heads x 2, two bytes each, K and V: 96 x 4 bytes, 32 a token.
    model = dict(sglang.hello["model"])
    assert len(model.pop("fingerprint")) == 12
    assert model == {**SHAPE, "quantization": "fp8", "kv_reserved_bytes": 384, "kv_bytes_per_token": 32}
    engine = {
        "max_cached_tokens": 11, "chunked_prefill": False, "async_scheduling": True, "block_size": 1,
        "cuda_graphs": "NONE",
    }  # fmt: skip
    assert [sglang.hello[key] for key in FACTS] == [1, 1, 2, {"tp": 2, "pp": 1, "dp": 1}, engine]
    assert sglang.hello["draft_model"] == sglang.hello["model"]


def test_sglang_settings_as_they_were_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: SimpleNamespace(tp_size=4, tp_rank=3)  # type: ignore[attr-defined]
    context.get_schedule = lambda: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, context.__name__, context)
    runner = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace()), server_args=SimpleNamespace(tp_size=2, dp_size=1)
    )
    resolved = sglang_hooks.facts(runner)
    assert (resolved["rank"], resolved["world_size"], resolved["parallel"]) == (3, 4, {"tp": 4, "dp": 1})
    assert guard.failures.pop("sglang settings")[0] > 0


def test_latent_attention_has_no_key_heads() -> None:
    config = SimpleNamespace(num_attention_heads=16, num_hidden_layers=3, hidden_size=64, kv_lora_rank=32)
    found = architecture.of_config(config, "C:\\models\\deepseek")
    assert found["name"] == "deepseek"
    assert found["kv_lora_rank"] == 32
    assert "kv_heads" not in found and "head_dim" not in found


def test_hooks_name_a_module_a_method_and_a_function() -> None:
    for hooks in (vllm_hooks, sglang_hooks):
        for module, path, describe, facts in hooks.HOOKS:
            assert module.split(".")[0] == hooks.__name__.rpartition(".")[2]
            assert len(path.split(".")) == 2
            assert getattr(hooks, describe.__name__) is describe
            assert facts in (None, hooks.facts)
