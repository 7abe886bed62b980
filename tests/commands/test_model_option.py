"""`report --model`: names, files, typos, what the document says of it, and the floor of a replayed decode step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer.__main__ import main

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu.json.gz"
REPLAYED = "mi300x-vllm-decode-full-graph.json.gz"
CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 640}  # fmt: skip


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["report", *arguments, "--json", "-"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("llama-3.1-8", "llama-3.1-8b"),
        ("gpt-oss-20", "gpt-oss-20b"),
        ("qwen-2.5-7b", "qwen2.5-7b"),
        ("no such thing at all", "known are, for example"),
    ],
)
def test_a_typo_is_one_line_with_near_names(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nothing-is-read.json", "--model", name]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"traceanalyzer: [^\n]+\n", shown.err)
    assert name in shown.err
    assert hint in shown.err


@pytest.mark.parametrize("value", ["", " ", "a\0b", "missing/config.json", "/dev/zero", "/proc/self/mem", "x" * 10_000])
def test_what_is_no_model_is_one_line(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nothing-is-read.json", "--model", value]) == 2
    assert re.fullmatch(r"traceanalyzer: [^\n]{1,400}\n", capsys.readouterr().err)


def test_a_config_that_is_not_covered_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "private" / "config.json"
    path.parent.mkdir()
    for config, said in (
        ({**CONFIG, "model_type": "mamba"}, "config.json: architecture 'mamba' is not known"),
        ({**CONFIG, "vocab_size": None}, "config.json: it has no vocab_size"),
        ({**CONFIG, "num_hidden_layers": 10**12}, "config.json: num_hidden_layers is no whole number"),
    ):
        path.write_text(json.dumps(config))
        assert main(["report", str(SAMPLE), "--model", str(path), "--json", "-"]) == 2
        shown = capsys.readouterr().err
        assert re.fullmatch(r"traceanalyzer: [^\n]+\n", shown)
        assert said in shown
        assert "private" not in shown


def test_the_document_holds_the_base_name_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "private" / "tuned.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**CONFIG, "_name_or_path": "/home/somebody/tuned"}))
    found = document(capsys, str(SAMPLE), "--model", str(path))
    assert found["options"]["model"] == "tuned.json"
    for text in ("private", "somebody"):
        assert text not in json.dumps(found)


def test_a_finished_page_takes_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(SAMPLE), "-o", str(page), "--quiet"]) == 0
    assert main(["report", str(page), "--model", "gpt2", "--json", "-"]) == 2
    assert "its GPU, model, peaks and price are fixed" in capsys.readouterr().err


def test_a_model_that_did_not_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, str(SAMPLE), "--model", "meta-llama/Llama-3.1-8B")
    assert found["options"]["model"] == "llama-3.1-8b"
    (note,) = [note for note in found["quality"] if note["code"] == "given_model_contradicted"]
    assert "hidden 4096" in note["message"]
    assert found["run"]["model"]["hidden"] != 4096
    alone = document(capsys, str(SAMPLE))
    assert found["decode_floor"] == alone["decode_floor"]
    assert found["memory"] == alone["memory"]


@pytest.mark.parametrize("option", [(), ("--model", "gpt-oss-20b")])
def test_a_replayed_decode_step_has_a_floor(
    option: tuple[str, ...], traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, str(traces / REPLAYED), *option)
    floor, model = found["decode_floor"], found["run"]["model"]
    assert floor["source"] == "model-config"
    # 24 layers, 31.55 of 32 experts at 4.25 bits each (32 tokens, 4 experts a token), the rest and the output in bf16
    expert, attention = 3 * 2880 * 2881 * 4.25 / 8, 2 * 2880 * (2 * 4096 + 2 * 512)
    dense = 24 * attention + 2 * 201_088 * 2880
    assert floor["weight_bytes_read"] == pytest.approx(24 * 31.554 * expert + dense, rel=0.002)
    assert floor["weight_bytes_read_min"] == pytest.approx(24 * 4 * expert + dense, rel=0.002)
    assert floor["weight_bytes_read_max"] == pytest.approx(24 * 32 * expert + dense, rel=0.002)
    assert floor["weight_bytes_held"] == pytest.approx(13.75e9, rel=0.002)
    # 12 layers keep 55,086 tokens, 12 look back 128 tokens in each of 32 sequences
    assert floor["kv_bytes"] == 12 * 2 * 8 * 64 * 2 * (55_086 + 32 * 128)
    assert floor["floor_us"] == pytest.approx((floor["weight_bytes_read"] + floor["kv_bytes"]) / 5.3e6)
    assert floor["floor_us"] < 0.3 * floor["measured_us"]
    assert (model["name"], model["source"]) == ("gpt-oss-20b", "user" if option else "catalogue")
    assert model["sources"]["experts"] == model["source"]
    assert (model["sliding_window"], model["full_attention_every"]) == (128, 2)
    assert model["weight_bits"]["experts"] == 4.25
