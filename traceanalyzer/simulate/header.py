"""What stands around the events of a trace: properties of the devices, the ranks, and the block that says what it is.

What could be wrong: limits of a device that neither peaks nor work depend on (threads, registers, shared memory) are
those of its generation.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, fields
from typing import Any

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.variants import Variant

BLOCK_SCHEMA = 1
_SHARED_MEMORY = {7: 98_304, 8: 167_936, 9: 233_472, 10: 233_472, 12: 102_400}
"""Bytes per SM by compute capability (CUDA programming guide)."""
_WIDE = ("7.0", "8.0", "9.0", "10.0", "10.3")
"""Compute capabilities with 2048 threads per SM."""


def head(scenario: Scenario, gpu: Gpu, rank: int, variant: Variant) -> str:
    """The text before the first event.

    There is no date in it: the clock counts from the machine's start, so the same scenario gives the same bytes.
    """
    facts: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [_device(gpu, device) for device in range(scenario.ranks)],
    }
    if scenario.ranks > 1:
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": scenario.ranks,
                 "ranks": list(range(scenario.ranks))}  # fmt: skip
        facts["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": scenario.ranks, "pg_count": 1,
                                    "pg_config": [group]}  # fmt: skip
    recorded = {
        "record_shapes": variant.shapes and variant.ops, "profile_memory": variant.memory, "with_stack": variant.stacks,
    }  # fmt: skip
    facts |= {key: 1 for key, wanted in recorded.items() if wanted}
    seed = json.dumps([_identity(scenario), rank, astuple(variant)], default=str)
    facts["trace_id"] = hashlib.sha256(seed.encode()).hexdigest()[:32].upper()
    facts |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": 0}
    return json.dumps(facts, indent=2)[:-2] + ',\n  "traceEvents": [\n'


def foot(name: str, block: dict[str, Any]) -> str:
    """The text after the last event; `name` is the trace's base name."""
    return '\n  ],\n  "traceName": ' + json.dumps(name) + ',\n  "traceanalyzer": ' + json.dumps(block) + "\n}\n"


def block(scenario: Scenario, gpu: Gpu, model: ModelConfig, steps: int) -> dict[str, Any]:
    """The block that a recorder writes; `window.simulated` says that nothing ran."""
    quantized = {} if scenario.weights == "same" else {"quantization": scenario.weights}
    facts = {
        "name": model.hf_name, "id": model.id, "architecture": model.architecture, "layers": model.layers,
        "hidden": model.hidden, "heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim,
        "ffn": model.ffn, "vocab": model.vocab, "tied_embeddings": model.tied_embeddings,
        "parameters": model.parameters, "dtype": scenario.dtype,
        "kv_dtype": scenario.dtype if scenario.kv == "same" else scenario.kv,
    }  # fmt: skip
    if model.moe is not None:
        facts |= {"experts": model.moe.experts, "experts_per_token": model.moe.experts_per_token,
                  "expert_ffn": model.moe.ffn, "shared_experts": model.moe.shared_experts}  # fmt: skip
    window = {
        "simulated": True, "steps": steps, "batch": scenario.batch, "input_length": scenario.prompt,
        "output_length": scenario.output, "mode": scenario.mode, "ranks": scenario.ranks,
    }  # fmt: skip
    return {
        "schema": BLOCK_SCHEMA,
        "model": facts | quantized,
        "gpu": {"id": gpu.id, "name": gpu.names[0] if gpu.names else gpu.id},
        "window": window,
    }


def _identity(scenario: Scenario) -> tuple[Any, ...]:
    """The scenario's values; a field that came after `seed` counts only where it is not its default."""
    names = [one.name for one in fields(scenario)]
    values, defaults = astuple(scenario), astuple(Scenario())
    first = names.index("seed") + 1
    later = zip(names[first:], values[first:], defaults[first:], strict=True)
    return (*values[:first], *((name, value) for name, value, default in later if value != default))


def _device(gpu: Gpu, device: int) -> dict[str, Any]:
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    shared = _SHARED_MEMORY.get(major, 65_536)
    return {
        "id": device, "name": gpu.names[0] if gpu.names else "",
        "totalGlobalMem": gpu.memory_bytes or max(gpu.memory_sizes),
        "computeMajor": major, "computeMinor": minor, "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048 if gpu.compute_capability in _WIDE else 1536,
        "regsPerBlock": 65536, "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": gpu.num_sms,
        "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": max(49_152, shared - 1024),
        "sharedMemPerMultiprocessor": shared,
    }  # fmt: skip
