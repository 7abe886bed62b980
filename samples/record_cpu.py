"""Record a tiny Llama's `generate()` on the CPU: a trace whose exact truth is known.

    python samples/record_cpu.py --out samples                  both samples
    python samples/record_cpu.py --out out --only tiny-llama-cpu

Needs torch and transformers; weights are random and nothing is downloaded. For each sample two files are written:
NAME.json.gz, what `torch.profiler` exports, and NAME.truth.json, what was asked of the model. What could be wrong with
them: a CPU says nothing about launches, streams or tensor cores, and a model this small is bound by the dispatch of
its operators; the samples are there to check phases, tokens and operations, not to say anything about a real run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

SEED = 20
# What a reader of the trace needs. All other top-level keys go: they hold paths, host names and environments.
KEPT_KEYS = ("schemaVersion", "deviceProperties", "record_shapes", "displayTimeUnit", "baseTimeNanoseconds")


@dataclass(frozen=True)
class Sample:
    """One recording: what is generated, from how much."""

    name: str
    batch: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class Shape:
    """The model, small enough for a trace of some 100 KB, large enough for its GEMMs to show."""

    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    vocab_size: int = 2048


SAMPLES = (Sample("tiny-llama-cpu", 1, 96, 12), Sample("tiny-llama-cpu-batch4", 4, 48, 8))


def build(shape: Shape) -> LlamaForCausalLM:
    """The model with random float32 weights."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        **asdict(shape), max_position_embeddings=512, attn_implementation="sdpa", bos_token_id=0, eos_token_id=None
    )
    return LlamaForCausalLM(config).eval()


def generate(model: LlamaForCausalLM, ids: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Exactly `new_tokens` greedy tokens after `ids` [batch, prompt]."""
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )


def clean(document: dict[str, Any]) -> dict[str, Any]:
    """The same trace without what it says about the machine: only the known keys, and no process label but python's."""
    kept = {key: document[key] for key in KEPT_KEYS if key in document}
    events = document["traceEvents"]
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "process_name":
            event["args"] = {"name": "python"}
    return kept | {"traceEvents": events}


def record(sample: Sample, shape: Shape, out: Path) -> Path:
    """Profile one `generate()` and write the trace and its truth under `out`; returns the trace's path."""
    model = build(shape)
    ids = torch.randint(1, shape.vocab_size, (sample.batch, sample.prompt_tokens))
    generate(model, ids, 3)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        result = generate(model, ids, sample.new_tokens)
    if result.shape != (sample.batch, sample.prompt_tokens + sample.new_tokens):
        raise SystemExit(f"{sample.name}: generated {tuple(result.shape)}, not what was asked for")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        document = json.loads(raw.read_text(encoding="utf-8"))
    text = json.dumps(clean(document), separators=(",", ":"))
    path = out / f"{sample.name}.json.gz"
    # mtime 0: the same recording gives the same bytes.
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    truth = {**asdict(sample), "dtype": "fp32", "torch": torch.__version__, "model": asdict(shape)}
    (out / f"{sample.name}.truth.json").write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Record the samples asked for and print their paths."""
    parser = argparse.ArgumentParser(description="Record a tiny Llama's generate() on the CPU.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--only", choices=[sample.name for sample in SAMPLES], help="one sample, not all")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    logging.set_verbosity_error()
    # One thread: the work of an op stays on the thread that the trace shows.
    torch.set_num_threads(1)
    for sample in SAMPLES:
        if args.only in (None, sample.name):
            print(record(sample, Shape(), args.out))


if __name__ == "__main__":
    main()
