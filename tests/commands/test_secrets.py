"""What a trace's metadata and events hold in the way of secrets never reaches any output."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from traceanalyzer.__main__ import main

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu-batch4.json.gz"
PLANTED = [f"ghp_{'planted':x<36}", f"hf_{'planted':x<34}", "AKIAPLANTEDPLANTED00", "sk-planted-planted-planted"]


def test_planted_tokens_stay_in_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    trace |= {
        "env": {"GITHUB_TOKEN": PLANTED[0], "HF_TOKEN": PLANTED[1]},
        "host_name": f"node-{PLANTED[2]}",
        "traceName": f"/home/{PLANTED[3]}/trace.json",
        "distributedInfo": {"rank": 0, "world_size": 1, "pg_config": [{"pg_desc": PLANTED[0]}]},
        PLANTED[1]: PLANTED[2],
    }
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            event["args"] |= {"token": PLANTED[2], "Call stack": f"run.py --key {PLANTED[3]}"}
        elif "name" in event.get("args", {}):
            event["args"]["name"] += " " + PLANTED[3]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    outputs = [tmp_path / f"out.{kind}" for kind in ("html", "json", "md")]
    arguments = ["report", str(path), "-o", str(outputs[0]), "--json", str(outputs[1]), "--markdown", str(outputs[2])]
    assert main(arguments) == 0
    assert main(["report", str(outputs[0])]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, *(output.read_text(encoding="utf-8") for output in outputs)):
        for token in PLANTED:
            assert token not in text


def test_folders_are_not_named_in_the_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "secret-project"
    folder.mkdir()
    (folder / "trace.json.gz").write_bytes(SAMPLE.read_bytes())
    output = tmp_path / "out.html"
    assert main(["report", str(folder / "trace.json.gz"), "-o", str(output), "-q"]) == 0
    assert "secret-project" not in output.read_text(encoding="utf-8")
