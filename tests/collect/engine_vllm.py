"""Has vLLM's own worker run batches of all kinds: `python engine_vllm.py FOLDER [hooks]`.

It runs as a recorded command does: the boot puts the hooks in place. With `hooks` the methods may fail, as those of
other releases ask for more than is put up here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import wheels

REAL = (
    "vllm.v1.core.sched.output", "vllm.v1.outputs", "vllm.v1.kv_cache_interface", "vllm.sequence",
    "vllm.v1.worker.worker_base", "vllm.v1.worker.gpu_worker", "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.spec_decode",
)  # fmt: skip


def scheduled(tokens: dict[str, int], new: Any = (), cached: Any = (), **more: Any) -> Any:
    """A real SchedulerOutput. new: (name, computed, prompt, known) each; cached: (name, computed, outputs) each."""
    output = importlib.import_module("vllm.v1.core.sched.output")
    fresh = [
        wheels.build(output.NewRequestData, req_id=name, num_computed_tokens=computed, mm_features=[], block_ids=([],),
                     prompt_token_ids=list(range(prompt)), prefill_token_ids=known and list(range(known)))
        for name, computed, prompt, known in new
    ]  # fmt: skip
    old = known_requests(output.CachedRequestData, cached)
    fields = {"scheduled_spec_decode_tokens": {}, "scheduled_encoder_inputs": {}, **more}
    return wheels.build(
        output.SchedulerOutput, scheduled_new_reqs=fresh, scheduled_cached_reqs=old, num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()), finished_req_ids=set(), **fields,
    )  # fmt: skip


def known_requests(kind: Any, cached: Any) -> Any:
    """What the scheduler sends of requests that the worker knows: one object, before 0.9 a list of one for each."""
    if any(field.name == "req_id" for field in dataclasses.fields(kind)):
        return [wheels.build(kind, req_id=name, num_computed_tokens=done) for name, done, _ in cached]
    return wheels.build(
        kind, req_ids=[name for name, _, _ in cached], resumed_req_ids=set(), new_token_ids=[], all_token_ids={},
        new_block_ids=[None] * len(cached), num_computed_tokens=[done for _, done, _ in cached],
        num_output_tokens=[out for _, _, out in cached], resumed_from_preemption=[False] * len(cached),
    )  # fmt: skip


def batches() -> dict[str, Any]:
    return {
        "prefill": scheduled({"a": 7, "b": 3}, new=[("a", 0, 7, None), ("b", 4, 7, None)]),
        "decode": scheduled({"a": 1, "b": 1}, cached=[("a", 7, 1), ("b", 7, 1)]),
        "mixed": scheduled({"a": 1, "c": 6}, new=[("c", 0, 10, None)], cached=[("a", 8, 2)]),
        "chunk": scheduled({"c": 4, "a": 1}, cached=[("a", 9, 3), ("c", 6, 0)]),
        "last_token_of_prompt": scheduled({"a": 1, "c": 1}, cached=[("a", 9, 3), ("c", 9, 0)]),
        "verify": scheduled(
            {"a": 4, "b": 1}, cached=[("a", 10, 4), ("b", 8, 2)], scheduled_spec_decode_tokens={"a": [5, 6, 7]}
        ),
        "resumed": scheduled({"a": 14}, cached=[("a", 0, 4)]),
        "resumed_as_new": scheduled({"a": 14}, new=[("a", 0, 10, 14)]),
        "warm_up": scheduled({"_warmup_0_": 2}, new=[("_warmup_0_", 0, 2, 2)]),
        "nothing": scheduled({}),
    }


def config() -> Any:
    """What the facts are read from, with sizes that the test knows."""
    hub = SimpleNamespace(
        architectures=["LlamaForCausalLM"], num_hidden_layers=2, hidden_size=8, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=16, vocab_size=32, tie_word_embeddings=False,
    )  # fmt: skip
    return SimpleNamespace(
        is_mm_encoder_only=False, speculative_config=None,
        model_config=SimpleNamespace(
            model="/models/someone/tiny-llama/", hf_text_config=hub, dtype=torch.bfloat16, quantization=None,
            enforce_eager=False,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=4, num_gpu_blocks=10, enable_prefix_caching=True),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=2),
        scheduler_config=SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=512, enable_chunked_prefill=True,
                                         async_scheduling=True),
        compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE")),
    )  # fmt: skip


def runner(ran: list[str]) -> Any:
    """Stands in for the model runner: 2 layers with 10 blocks of 4 tokens, and a table as the model."""
    made = SimpleNamespace(
        is_pooling_model=False, case="", model=torch.nn.Embedding(32, 8, dtype=torch.bfloat16),
        kv_caches=[torch.zeros(2, 10, 4, 2, 2, dtype=torch.bfloat16) for _ in range(2)],
        kv_cache_config=SimpleNamespace(num_blocks=10, kv_cache_groups=[None]),
    )  # fmt: skip
    made.execute_model = lambda *_: ran.append(made.case)
    made._dummy_run = lambda *_, **__: ran.append("dummy")
    return made


def main(folder: Path, body: bool) -> None:
    version = wheels.use("vllm", REAL, folder)
    hooks = importlib.import_module("_traceanalyzer_inside.vllm")
    targets = {f"{each[0]}:{each[1]}": wheels.own(*each[:2]) is not None for each in hooks.HOOKS}
    owner = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
    ran: list[str] = []
    labels = wheels.watch_labels()
    worker = object.__new__(owner)
    for name, value in {
        "_pp_send_work": [], "profiler": None, "use_v2_model_runner": False, "model_runner": runner(ran), "rank": 0,
        "local_rank": 0, "vllm_config": config(), "parallel_config": config().parallel_config,
    }.items():  # fmt: skip
        setattr(worker, name, value)
    for name, output in batches().items():
        worker.model_runner.case = name
        with contextlib.nullcontext() if body else contextlib.suppress(Exception):
            worker.execute_model(output)
    with contextlib.nullcontext() if body else contextlib.suppress(Exception):
        worker.execute_dummy_batch()
    wheels.tell(version=version, targets=targets, ran=ran, labels=labels, method=owner.execute_model, owner=owner)


if __name__ == "__main__":
    main(Path(sys.argv[1]), body=sys.argv[2:] != ["hooks"])
