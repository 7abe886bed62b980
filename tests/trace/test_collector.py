"""The recorder's own block of a trace: its known facts are kept, and nothing that is a secret or has no limit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer.__main__ import main
from traceanalyzer.trace import Trace, read_trace

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu-batch4.json.gz"
TOKENS = {
    "GitHub": f"ghp_{'planted':x<36}",
    "Hugging Face": f"hf_{'planted':x<34}",
    "OpenAI": "sk-planted-planted-planted",
    "AWS": "AKIAPLANTEDPLANTED00",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJwbGFudGVkIjoxfQ.planted",
    "header": "Authorization: Bearer planted.planted.planted",
    "URL": "https://planted:planted@registry.example/simple",
}


def written(tmp_path: Path, block: str) -> Path:
    """A trace of one kernel whose recorder wrote `block`."""
    event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 1, "args": {}}'
    path = tmp_path / "trace.json"
    path.write_text(f'{{"schemaVersion": 1, "traceanalyzer": {block}, "traceEvents": [{event}]}}', encoding="utf-8")
    return path


def read(tmp_path: Path, block: Any) -> Trace:
    return read_trace(written(tmp_path, json.dumps(block)))


def damage(trace: Trace) -> list[str]:
    return [note.detail for note in trace.quality if note.code == "damaged_metadata"]


def test_the_known_sections_are_kept_as_written(tmp_path: Path) -> None:
    block = {
        "schema": 1,
        "model": {"name": "tiny-llama", "layers": 2, "tied": True, "rope.theta": 1e4, "kv_bytes_per_token": 512},
        "gpu": {"clocks_mhz": [1980, 1965.5, None], "names": ["H100", "H100"]},
        "window": {"index": 3},
        "sampling": {"every_s": 30},
        "overhead": {"step_us": 812.5},
        "service": {"running": 7, "waiting": None},
    }
    trace = read(tmp_path, block)
    assert trace.metadata.collector == block
    assert not damage(trace)


def test_what_is_not_in_the_schema_is_dropped(tmp_path: Path) -> None:
    block = {
        "schema": 1,
        "env": {"HF_TOKEN": TOKENS["Hugging Face"]},
        "command": "python run.py",
        "model": {
            "name": "m", "config": {"a": 1}, "heads": [[1, 2]], "mixed": [1, {"a": 2}], "bad key": 1, "": 1,
            "k" * 65: 1, "huge": 2**64,
        },
    }  # fmt: skip
    trace = read(tmp_path, block)
    assert trace.metadata.collector == {"schema": 1, "model": {"name": "m"}}
    assert not damage(trace)


def test_numbers_that_json_cannot_hold_are_dropped(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, '{"schema": 1, "model": {"a": 1e999, "b": NaN, "c": 2}}'))
    assert trace.metadata.collector == {"schema": 1, "model": {"b": None, "c": 2}}


def test_sizes_are_limited(tmp_path: Path) -> None:
    model = {"text": "x" * 500, "numbers": list(range(500)), "texts": ["y" * 500]} | {f"k{i}": i for i in range(500)}
    found = read(tmp_path, {"schema": 1, "model": model}).metadata.collector
    assert found is not None
    kept = found["model"]
    assert isinstance(kept, dict)
    assert (kept["text"], kept["numbers"], kept["texts"]) == ("x" * 200, list(range(64)), ["y" * 200])
    assert len(kept) == 64


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_what_looks_like_a_secret_is_dropped(tmp_path: Path, token: str) -> None:
    values = {"plain": token, "inside": f"run with {token} please", "list": ["fine", token], "late": "z " * 95 + token}
    found = read(tmp_path, {"schema": 1, "service": values | {"url": "http://localhost:8000"}}).metadata.collector
    assert found == {"schema": 1, "service": {"url": "http://localhost:8000"}}


@pytest.mark.parametrize(
    "key", ["env", "argv", "cmdline", "key", "prompt", "prompt_text", "Token", "tokens", "password", "secret_id"]
)
def test_what_is_named_like_a_secret_is_dropped(tmp_path: Path, key: str) -> None:
    found = read(tmp_path, {"schema": 1, "service": {key: "abc", "n": 1}}).metadata.collector
    assert found == {"schema": 1, "service": {"n": 1}}
    found = read(tmp_path, {"schema": 1, "service": {key: 7, "n": 1}}).metadata.collector
    assert found == {"schema": 1, "service": {"n": 1}}


@pytest.mark.parametrize("key", ["HF_TOKEN", "api_key", "apikey", "user.password", "session-cookie", "aws_secret"])
def test_text_under_the_name_of_a_secret_is_dropped_and_numbers_stay(tmp_path: Path, key: str) -> None:
    found = read(tmp_path, {"schema": 1, "service": {key: "abc"}}).metadata.collector
    assert found == {"schema": 1, "service": {}}
    found = read(tmp_path, {"schema": 1, "service": {"x_" + key: 7}}).metadata.collector
    assert found == {"schema": 1, "service": {"x_" + key: 7}}


@pytest.mark.parametrize(
    ("block", "kept"),
    [
        ([1], None),
        ("text", None),
        ({}, None),
        ({"schema": 2, "model": {"a": 1}}, None),
        ({"schema": True, "model": {"a": 1}}, None),
        ({"schema": 1, "model": [1], "gpu": {"a": 1}}, {"schema": 1, "gpu": {"a": 1}}),
    ],
)
def test_a_block_of_another_form_is_noted(tmp_path: Path, block: Any, kept: object) -> None:
    trace = read(tmp_path, block)
    assert trace.metadata.collector == kept
    assert damage(trace) == ["traceanalyzer"]


def test_a_trace_without_the_block_is_whole(tmp_path: Path) -> None:
    trace = read(tmp_path, None)
    assert trace.metadata.collector is None
    assert not damage(trace)


def nested(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


@pytest.mark.parametrize("levels", [1, 500, 100_000])
def test_neither_secrets_nor_depth_reach_an_output(
    tmp_path: Path, levels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    token = TOKENS["Hugging Face"]
    block = f'{{"schema": 1, "env": {{"HF_TOKEN": "{token}"}}, "model": {{"m": {nested(levels)}, "note": "{token}"}}}}'
    trace = gzip.decompress(SAMPLE.read_bytes()).decode()
    path = tmp_path / "trace.json"
    path.write_text(trace.replace("{", f'{{"traceanalyzer": {block},', 1), encoding="utf-8")
    outputs = [tmp_path / f"out.{kind}" for kind in ("html", "json", "md")]
    arguments = ["report", str(path), "-o", str(outputs[0]), "--json", str(outputs[1]), "--markdown", str(outputs[2])]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, *(output.read_text(encoding="utf-8") for output in outputs)):
        assert token not in text
        assert "HF_TOKEN" not in text
        assert "Traceback" not in text
    collector = json.loads(outputs[1].read_text(encoding="utf-8"))["traces"][0]["collector"]
    assert collector == (None if levels == 100_000 else {"schema": 1, "model": {}})
