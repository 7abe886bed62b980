"""Runs the hooks on vLLM's own classes and prints what they said, as JSON: `python engine_vllm.py FOLDER [hooks]`.

With `hooks` the methods' bodies are left out: those of other releases ask for more than is put up here."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def main(folder: Path, body: bool) -> None:
    version = wheels.use("vllm", REAL, folder)
    wheels.load_inside()
    hooks = importlib.import_module("_traceanalyzer_inside.vllm")
    targets = {f"{module}:{path}": wheels.own(module, path) is not None for module, path, _ in hooks.HOOKS}
    worker_module = importlib.import_module("vllm.v1.worker.gpu_worker")
    said: dict[str, Any] = {}
    ran: list[str] = []
    original = worker_module.Worker.execute_model

    @functools.wraps(original)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        said[self.model_runner.case] = hooks.describe_step(self, *args, **kwargs)
        return original(self, *args, **kwargs) if body else None

    worker_module.Worker.execute_model = execute_model
    worker = object.__new__(worker_module.Worker)
    runner = SimpleNamespace(execute_model=lambda *_: ran.append(runner.case), is_pooling_model=False, case="")
    for name, value in {
        "_pp_send_work": [], "profiler": None, "use_v2_model_runner": False, "model_runner": runner,
        "vllm_config": SimpleNamespace(is_mm_encoder_only=False),
    }.items():  # fmt: skip
        setattr(worker, name, value)
    for name, output in batches().items():
        runner.case = name
        worker.execute_model(output)
    print(
        json.dumps(
            {
                "version": version,
                "targets": targets,
                "steps": {name: found and found._asdict() for name, found in said.items()},
                "ran": ran,
                "name": execute_model.__qualname__,
                "pickled": pickle.loads(pickle.dumps(worker_module.Worker)) is worker_module.Worker,
                "failures": importlib.import_module("_traceanalyzer_inside.guard").failures,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), body=sys.argv[2:] != ["hooks"])
