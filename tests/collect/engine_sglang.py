"""Runs the hooks on SGLang's own classes and prints what they said, as JSON: `python engine_sglang.py FOLDER [hooks]`.

With `hooks` the methods' bodies are left out: those of other releases ask for more than is put up here."""

from __future__ import annotations

import functools
import importlib
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import wheels

REAL = (
    "sglang.srt.model_executor.forward_batch_info", "sglang.srt.model_executor.model_runner",
    "sglang.srt.speculative.eagle_draft_cuda_graph_runner",
    "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
    "sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner",
)  # fmt: skip


class Untouchable:
    """A tensor on a device: whoever asks it for anything waits for that device."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"read from the device: {name}")


def batch(mode: str, sequences: int, tokens: int | None, total: int | None, **lists: Any) -> Any:
    """A real ForwardBatch of a mode, with what a scheduler puts beside its tensors; None where the release lacks it."""
    info = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    if mode not in info.ForwardMode.__members__:
        return None
    return wheels.build(
        info.ForwardBatch, forward_mode=info.ForwardMode[mode], batch_size=sequences, seq_lens_sum=total,
        input_ids=None if tokens is None else torch.zeros(tokens, dtype=torch.int64), seq_lens=Untouchable(),
        seq_lens_cpu=Untouchable(), req_pool_indices=Untouchable(), out_cache_loc=Untouchable(), **lists,
    )  # fmt: skip


def batches() -> dict[str, Any]:
    return {
        "prefill": batch("EXTEND", 2, 10, 14, extend_seq_lens_cpu=[7, 3], extend_prefix_lens_cpu=[0, 4]),
        "prefill_without_lists": batch("EXTEND", 2, 10, 14),
        "decode": batch("DECODE", 3, 3, 60),
        "mixed": batch("MIXED", 3, 8, 40, extend_seq_lens_cpu=[6, 1, 1], extend_prefix_lens_cpu=[0, 8, 24]),
        "idle": batch("IDLE", 0, 0, 0),
        "verify": batch("TARGET_VERIFY", 2, 8, 30),
        "split": batch("SPLIT_PREFILL", 1, 5, 5),
        "draft": batch("DECODE", 2, 4, 30),
        "named": batch("EXTEND", 2, 8, 12, extend_seq_lens_cpu=[4, 4], extend_prefix_lens_cpu=[0, 4], rids=["a", "b"]),
        "named_on": batch(
            "EXTEND", 2, 6, 14, extend_seq_lens_cpu=[3, 3], extend_prefix_lens_cpu=[8, 0], rids=["b", "c"]
        ),
    }


def main(folder: Path, body: bool) -> None:
    version = wheels.use("sglang", REAL, folder)
    wheels.load_inside()
    hooks = importlib.import_module("_traceanalyzer_inside.sglang")
    targets = {f"{module}:{path}": wheels.own(module, path) is not None for module, path, _ in hooks.HOOKS}
    model_runner = importlib.import_module("sglang.srt.model_executor.model_runner")
    said: dict[str, Any] = {}
    ran: list[str] = []
    original = model_runner.ModelRunner.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        said[self.case] = hooks.describe_forward(self, *args, **kwargs)
        return original(self, *args, **kwargs) if body else None

    def forward_raw(*_: Any) -> Any:
        ran.append(runner.case)
        return SimpleNamespace(can_run_graph=False)

    model_runner.ModelRunner.forward = forward
    runner = object.__new__(model_runner.ModelRunner)
    for name, value in {
        "forward_pass_id": 0, "msprobe_debugger": None, "canary_manager": None, "enable_elastic_ep": False,
        "eplb_manager": None, "decode_cuda_graph_runner": None, "is_draft_worker": False, "_forward_raw": forward_raw,
        "_elastic_cuda_graph_enabled": lambda: True,
    }.items():  # fmt: skip
        setattr(runner, name, value)
    for name, each in batches().items():
        if each is None:
            continue
        runner.case, runner.is_draft_worker = name, name == "draft"
        runner.forward(each)
    print(
        json.dumps(
            {
                "version": version,
                "targets": targets,
                "steps": {name: found and found._asdict() for name, found in said.items()},
                "ran": ran,
                "name": forward.__qualname__,
                "pickled": pickle.loads(pickle.dumps(model_runner.ModelRunner)) is model_runner.ModelRunner,
                "failures": importlib.import_module("_traceanalyzer_inside.guard").failures,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), body=sys.argv[2:] != ["hooks"])
