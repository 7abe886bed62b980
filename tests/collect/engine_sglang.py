"""Has SGLang's own model runner run batches of all kinds: `python engine_sglang.py FOLDER [hooks]`.

It runs as a recorded command does: the boot puts the hooks in place. With `hooks` the methods may fail, as those of
other releases ask for more than is put up here.
"""

from __future__ import annotations

import contextlib
import importlib
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


def runner(owner: Any, ran: list[str]) -> Any:
    """A real ModelRunner without its model: 2 layers of 12 tokens, and a table as the model."""
    made = object.__new__(owner)

    def forward_raw(*_: Any) -> Any:
        ran.append(made.case)
        return SimpleNamespace(can_run_graph=False)

    def buffers() -> list[Any]:
        return [torch.zeros(12, 2, 2, dtype=torch.bfloat16) for _ in range(2)]

    hub = SimpleNamespace(
        architectures=["LlamaForCausalLM"], num_hidden_layers=2, hidden_size=8, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=16, vocab_size=32, tie_word_embeddings=False,
    )  # fmt: skip
    for name, value in {
        "forward_pass_id": 0, "msprobe_debugger": None, "canary_manager": None, "enable_elastic_ep": False,
        "eplb_manager": None, "decode_cuda_graph_runner": None, "is_draft_worker": False, "_forward_raw": forward_raw,
        "_elastic_cuda_graph_enabled": lambda: True,
        "model_config": SimpleNamespace(hf_text_config=hub, model_path="someone/tiny-llama", dtype=torch.bfloat16,
                                        quantization="fp8"),
        "server_args": SimpleNamespace(tp_size=2, pp_size=1, dp_size=1, chunked_prefill_size=-1,
                                       disable_overlap_schedule=False),
        "model": torch.nn.Embedding(32, 8, dtype=torch.bfloat16), "kv_cache_dtype": torch.bfloat16, "tp_rank": 1,
        "token_to_kv_pool": SimpleNamespace(k_buffer=buffers(), v_buffer=buffers()), "gpu_id": 1, "page_size": 1,
        "max_total_num_tokens": 11,
    }.items():  # fmt: skip
        setattr(made, name, value)
    return made


def main(folder: Path, body: bool) -> None:
    version = wheels.use("sglang", REAL, folder)
    hooks = importlib.import_module("_traceanalyzer_inside.sglang")
    targets = {f"{each[0]}:{each[1]}": wheels.own(*each[:2]) is not None for each in hooks.HOOKS}
    # A stand-in has an answer to every question: what was resolved would be one, too.
    sys.modules.pop("sglang.srt.runtime_context", None)
    owner = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    ran: list[str] = []
    labels = wheels.watch_labels()
    target, draft = runner(owner, ran), runner(owner, ran)
    draft.is_draft_worker = True
    for name, each in batches().items():
        if each is None:
            continue
        of = draft if name == "draft" else target
        of.case = name
        with contextlib.nullcontext() if body else contextlib.suppress(Exception):
            of.forward(each)
    wheels.tell(version=version, targets=targets, ran=ran, labels=labels, method=owner.forward, owner=owner)


if __name__ == "__main__":
    main(Path(sys.argv[1]), body=sys.argv[2:] != ["hooks"])
