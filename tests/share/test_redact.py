"""What is planted in a trace is found nowhere after redaction, and what an analysis needs is still there."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard

from traceanalyzer.analysis.steps.labels import parse
from traceanalyzer.errors import CorruptTraceError, InputError, TraceAnalyzerError, UnsupportedTraceError
from traceanalyzer.share.redact import LEVELS, Level, facts, preview, redact_file, redacted_name
from traceanalyzer.share.redact.annotations import annotation
from traceanalyzer.trace import read_trace
from traceanalyzer.trace.collector import section

HOST = "gpu-node17.prod.example.com"
PLANTED = {
    "GitHub token": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "Hugging Face token": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "OpenAI key": "sk-proj-4f9aB2cD7eF1gH3iJ5kL",
    "AWS key": "AKIAIOSFODNN7EXAMPLE",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "bearer": "bearer AbCdEf0123456789AbCdEf",
    "password": "password=hunter2hunter2",
    "host": HOST,
    "short host": "gpu-node17",
    "home": "/home/alice.smith/secret-project/train.py",
    "home of the user": "/home/alice.smith",
    "Windows home": "C:\\Users\\alice.smith\\models\\train.py",
    "user": "alice.smith",
    "e-mail": "alice.smith@example.com",
    "IPv4": "10.23.45.67",
    "IPv6": "fe80::1ff:fe23:4567:890a",
    "URL": "https://bob:s3cr3tpw@wiki.example.com/page?id=7",
    "prompt": "Tell me what the merger costs",
}
"""What must be found nowhere, whatever the place it is planted in (a prompt: where people's text stands)."""


def kernel(number: int, name: str = "ampere_bf16_s16816gemm", **args: Any) -> dict[str, Any]:
    body = {"device": 0, "stream": 7, "correlation": number, "External id": number, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 100.125 + number, "dur": 0.5,
            "args": body}  # fmt: skip


def event(category: str, name: str, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": 100.125, "dur": 3, "args": args}


def trace(*events: dict[str, Any], **beside: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "traceEvents": [*map(kernel, range(3)), *events], **beside}


def write(folder: Path, document: object, name: str = "in.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def redacted(folder: Path, document: object, level: Level = "default") -> tuple[str, dict[str, Any]]:
    """The text of the redacted file, its JSON spelt without escapes, and what it holds."""
    target = folder / "out.json.gz"
    redact_file(write(folder, document), target, level)
    content = json.loads(gzip.decompress(target.read_bytes()))
    return json.dumps(content, ensure_ascii=False).replace("\\\\", "\\"), content


def everywhere(text: str) -> dict[str, Any]:
    """A trace with a text in every place that a producer has been seen to put texts."""
    return trace(
        event("user_annotation", f"serving {text} now"),
        event("gpu_user_annotation", text),
        event("cpu_op", "aten::mm", **{"Concrete Inputs": ["", text, f"[{text}]"], "Input type": ["float", "", ""]}),
        event("cpu_op", "my::op", **{"Concrete Inputs": ["", ["x", text], 5], "note": text}),
        event("python_function", f"{text} (12): step", **{"Python module id": 4}),
        event("weird", f"about {text}", nested={"deeper": [{"text": text, text: 1}]}),
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"python serve.py --say {text}"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": f"thread 1 ({text})"}},
        {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": text}},
        {"ph": "C", "name": f"counter of {text}", "pid": 1, "ts": 1, "args": {text: 3}},
        {"name": f"{text}!", "args": text, "cat": "cpu_op", "ph": "X", "pid": text, "tid": 1, "ts": 1, "dur": 1},
        host_name=HOST,
        environment={"HOME": text, "API": [text]},
        argv=["python", text],
        traceName=f"/tmp/{text}/gpu-node17_12.34.pt.trace.json",
        distributedInfo={"rank": 0, "world_size": 2, "backend": "nccl", "who": text},
        traceanalyzer={"schema": 1, "model": {"name": "m", "note": text}, "window": {"engine": "vllm"}},
    )


@pytest.mark.parametrize("level", ["default", "strict"])
@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_is_found_nowhere(tmp_path: Path, kind: str, level: Level) -> None:
    secret = PLANTED[kind]
    document = everywhere(secret)
    if kind in ("user", "e-mail"):  # known as the file names the home folder once
        document["traceEvents"].append(event("python_function", "/home/alice.smith/x.py(3): run"))
    text, content = redacted(tmp_path, document, level)
    assert secret.lower() not in text.lower()
    assert HOST not in text
    assert "alice" not in text
    assert "hunter2" not in text
    assert "s3cr3tpw" not in text
    assert len(content["traceEvents"]) == len(document["traceEvents"])
    assert "environment" not in content
    assert "argv" not in content
    assert "traceName" not in content


@pytest.mark.parametrize("kind", [kind for kind in PLANTED if kind != "prompt"])
def test_shapes_are_found_in_the_names_of_ops_and_kernels_too(tmp_path: Path, kind: str) -> None:
    document = everywhere(PLANTED[kind])
    for category in ("kernel", "cpu_op", "cuda_runtime", "python_function", "gpu_memcpy"):
        document["traceEvents"] += [event(category, PLANTED[kind]), event(category, f"void f<{PLANTED[kind]}>(int)")]
    document["traceEvents"].append(event("python_function", "/home/alice.smith/x.py(3): run"))
    text, _ = redacted(tmp_path, document)
    assert PLANTED[kind].lower() not in text.lower()


def test_the_host_is_called_by_the_collectors_hash(tmp_path: Path) -> None:
    _, content = redacted(tmp_path, trace(host_name=HOST))
    hashed = hashlib.sha256(HOST.encode()).hexdigest()[:12]
    assert content["host_name"] == hashed
    before, after = read_trace(tmp_path / "in.json"), read_trace(tmp_path / "out.json.gz")
    assert before.metadata.host_hash == after.metadata.host_hash == hashed


def test_a_hash_of_the_collector_is_not_hashed_again_and_a_containers_name_is(tmp_path: Path) -> None:
    hashed = "3f2a9c1b7d4e"
    recorded = trace(host_name=hashed, traceanalyzer={"schema": 1, "window": {"recorder": "python"}})
    _, content = redacted(tmp_path, recorded)
    assert content["host_name"] == hashed
    assert read_trace(tmp_path / "in.json").metadata.host_hash == hashed
    _, content = redacted(tmp_path, trace(host_name=hashed))
    assert content["host_name"] == hashlib.sha256(hashed.encode()).hexdigest()[:12]


KEPT = (
    "execute_context_1(888_788544)_generation_0(0)", "execute_new_1_cached_3", "ProfilerStep#12", "capture_32_FULL",
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
    "step[EXTEND bs=2 toks=12 c_sk=20 c_sqsk=120]", "step[DECODE bs=8 g_sq=8]", "step[IDLE]",
    "prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "decode[bs=117/128 tok=117]", "draft[1/3 bs=8]",
    "ta.step[decode n=17 tokens=2 seqs=2 ctx=80 qk=80]", "prefill", "decode", "generate", "warmup",
    "## Call CompiledFxGraph fud64jsrxcxliekg7lptyw24yz5k3oa65b73wjfbhz6j2fg6ouu7 ##", "nccl:all_reduce",
    "Optimizer.step#SGD.step", "nn.Module: LlamaMLP_3", "record_param_comms", "gpu_model_runner: forward",
    "Torch-Compiled Region: 0/0", "triton_poi_fused_add_0",
)  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_annotations_that_an_analysis_reads_stay(tmp_path: Path, name: str) -> None:
    _, content = redacted(tmp_path, trace(event("user_annotation", name)))
    assert content["traceEvents"][-1]["name"] == name


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("decode the merger costs", r"annotation:[0-9a-f]{12}\.decode"),
        ("step[DECODE bs=8 prompt=merger]", r"step\[DECODE bs=8\]"),
        ("execute_context_1(8)_generation_0(0) of merger", r"execute_context_1\(8\)_generation_0\(0\)"),
        ("ta.step[decode n=1 what=merger tokens=2]", r"ta\.step\[decode n=1 tokens=2\]"),
        ("the merger", r"annotation:[0-9a-f]{12}"),
        ("combine(B)", r"annotation:[0-9a-f]{12}"),
        ("decode tokens of merger", r"annotation:[0-9a-f]{12}"),
        ("decode[bs=merger tok=3]", r"decode\[bs=\? tok=3\]"),
        ("capture_8_merger", "capture_8_OTHER"),
    ],
)
def test_other_annotations_become_hashes_that_read_as_the_same_step(name: str, after: str) -> None:
    found = annotation(name, name)
    assert re.fullmatch(after, found)
    before, now = parse(name), parse(found)
    assert (before is None) == (now is None)
    if before is not None and now is not None:
        assert str(before).replace(repr(before.text), "") == str(now).replace(repr(now.text), "")
    assert annotation(found, found) == found


def test_numbers_stay_byte_by_byte_and_events_in_their_order(tmp_path: Path) -> None:
    numbers = ["1712195495534685.269", "1.0", "1.50", "-0.0", "1E5", "1e-7", "12345678901234567890", "0.1000"]
    events = ", ".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k{i}", "pid": 0, "tid": 7, "ts": {n}, "dur": {n}, '
        f'"args": {{"x": {n}, "say": "to /home/bob/x", "list": [{n}, [{n}]]}}}}'
        for i, n in enumerate(numbers)
    )
    source = write(tmp_path, f'{{"schemaVersion": 1, "baseTimeNanoseconds": 0170, "traceEvents": [{events}]}}')
    redact_file(source, tmp_path / "out.json.gz")
    text = gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode()
    for i, n in enumerate(numbers):
        part = text[text.index(f'"k{i}"') :].split("}", 1)[0]
        assert part.count(n) == 5, part
    assert [text.index(f'"k{i}"') for i in range(8)] == sorted(text.index(f'"k{i}"') for i in range(8))


def test_what_was_done_stands_in_the_file_and_in_every_rendering(tmp_path: Path) -> None:
    _, content = redacted(tmp_path, everywhere(PLANTED["home"]))
    assert list(content)[-1] == "traceanalyzer"
    done = content["traceanalyzer"]["redaction"]
    assert done["level"] == "default"
    assert done["version"] == 1
    assert done["hosts"] >= 1
    assert done["paths"] >= 5
    assert done["metadata"] >= 3
    read = section(read_trace(tmp_path / "out.json.gz").metadata.collector, "redaction")
    assert dict(read) == done


@pytest.mark.parametrize("level", LEVELS)
def test_redacting_twice_changes_nothing_more(tmp_path: Path, level: Level) -> None:
    document = everywhere(" and ".join(PLANTED.values()))
    for text in PLANTED.values():
        document["traceEvents"] += everywhere(text)["traceEvents"]
    once, twice = tmp_path / "once.json.gz", tmp_path / "twice.json.gz"
    redact_file(write(tmp_path, document), once, level)
    again = redact_file(once, twice, level)
    assert again.counts == {}
    assert once.read_bytes() == twice.read_bytes()


def test_none_changes_nothing_and_says_so(tmp_path: Path) -> None:
    document = everywhere(PLANTED["GitHub token"])
    _, content = redacted(tmp_path, document, "none")
    block = content.pop("traceanalyzer")
    before = document.pop("traceanalyzer")
    assert content == document
    assert block["redaction"] == {"level": "none", "version": 1}
    assert block["window"] == before["window"]


def test_levels_add_up_to_the_stricter(tmp_path: Path) -> None:
    source = write(tmp_path, everywhere(PLANTED["home"]))
    for level in LEVELS:
        redact_file(source, tmp_path / f"{level}.json.gz", level)
    redact_file(tmp_path / "strict.json.gz", tmp_path / "out.json.gz", "default")
    assert facts(tmp_path / "out.json.gz").level == "strict"
    redact_file(tmp_path / "none.json.gz", tmp_path / "out.json.gz", "default")
    assert facts(tmp_path / "out.json.gz").level == "default"


def test_the_same_trace_gives_the_same_bytes_whatever_its_packing(tmp_path: Path) -> None:
    text = json.dumps(everywhere(PLANTED["e-mail"])).encode()
    (tmp_path / "a.json").write_bytes(text)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text))
    (tmp_path / "c.json.zst").write_bytes(zstandard.compress(text))
    made = set()
    for name in ("a.json", "b.json.gz", "c.json.zst"):
        redact_file(tmp_path / name, tmp_path / "out")
        made.add((tmp_path / "out").read_bytes())
    assert len(made) == 1
    assert made.pop()[4:8] == bytes(4)  # gzip's time


def test_a_preview_shows_examples_and_writes_nothing(tmp_path: Path) -> None:
    document = trace(*(event("python_function", f"/home/bob/x{i}.py(1): f") for i in range(50)), host_name=HOST)
    source = write(tmp_path, document)
    found = preview(source)
    assert found.counts["paths"] == 50
    assert found.counts["hosts"] == 1
    assert found.total == sum(found.counts.values())
    assert len(found.examples["paths"]) == 20
    assert found.examples["hosts"][0].before == HOST
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]
    assert redact_file(source, tmp_path / "out").counts == found.counts


def test_strict_takes_names_and_stacks_too(tmp_path: Path) -> None:
    frame = "secretcorp/engine/alpha.py(17): schedule_merger"
    document = trace(
        event("python_function", frame), event("python_function", "torch/nn/modules/module.py(1): _call_impl"),
        event("cpu_op", "aten::mm", **{"Call stack": frame}),
        traceanalyzer={"schema": 1, "model": {"name": "merger-7b", "layers": 3}},
    )  # fmt: skip
    assert "merger" in redacted(tmp_path, document)[0]
    text, content = redacted(tmp_path, document, "strict")
    assert "merger" not in text
    assert "torch/nn/modules/module.py(1): _call_impl" in text
    assert content["traceanalyzer"]["model"]["layers"] == 3


DAMAGED = {
    "cut": lambda text: text[: len(text) * 2 // 3],
    "no end": lambda text: text.rsplit("]", 1)[0],
    "bare list": lambda text: text[text.index("[") : text.rindex('], "host_name"') + 1],
    "control": lambda text: text.replace("serving", "serv\x01ing"),
    "NaN": lambda text: text.replace("0.5", "NaN"),
    "escape": lambda text: text.replace("serving", "\\q\\ud800"),
    "quote": lambda text: text.replace("serving", 'ser"ving', 1),
    "text between": lambda text: text.replace("}, {", "}, SECRET ghp_16C7e42F292c6912E7710c838347Ae178B4a {", 1),
    "key twice": lambda text: text.replace('"ph"', '"ph": "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ph"', 2),
    "not UTF-8": lambda text: text.replace("serving", "serv\udcffing"),
    "deep": lambda text: text.replace(
        '"device": 0', f'"a": {"[" * 60}"{PLANTED["GitHub token"]}"{"]" * 60}, "device": 0'
    ),
    "trailing": lambda text: text + " SECRET /home/alice.smith/x",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_trace_is_redacted_all_the_same(tmp_path: Path, damage: str) -> None:
    text = DAMAGED[damage](json.dumps(everywhere(PLANTED["GitHub token"] + " " + PLANTED["home"])))
    (tmp_path / "in.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    redact_file(tmp_path / "in.json", tmp_path / "out.json.gz")
    after = gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode()
    json.loads(after)
    assert "ghp_" not in after
    assert "alice" not in after
    assert "SECRET" not in after
    before, now = read_trace(tmp_path / "in.json"), read_trace(tmp_path / "out.json.gz")
    assert [(note.code, note.count) for note in now.quality] == [(note.code, note.count) for note in before.quality]
    assert now.source.events == before.source.events
    assert now.kernels.drop(columns="name").equals(before.kernels.drop(columns="name"))
    assert list(map(now.text, now.kernels["name"])) == list(map(before.text, before.kernels["name"]))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", InputError),
        (b"PK\x03\x04 zip", InputError),
        (b"\x80\x04pickle", UnsupportedTraceError),
        (b'{"traceEve', CorruptTraceError),
        (b'{"some": "json"}', UnsupportedTraceError),
        (b"plain text", UnsupportedTraceError),
    ],
)
def test_what_is_no_trace_is_refused_and_leaves_nothing(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    (tmp_path / "in.json").write_bytes(content)
    with pytest.raises(error):
        redact_file(tmp_path / "in.json", tmp_path / "out.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]


def test_what_cannot_be_written_or_asked_is_one_line(tmp_path: Path) -> None:
    source = write(tmp_path, trace())
    with pytest.raises(InputError, match="cannot be written"):
        redact_file(source, tmp_path / "none" / "out.json.gz")
    with pytest.raises(InputError, match="into itself"):
        redact_file(source, source)
    assert source.read_text() == json.dumps(trace())
    with pytest.raises(TraceAnalyzerError, match="no level"):
        redact_file(source, tmp_path / "out.json.gz", "much")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="does not exist"):
        redact_file(tmp_path / "missing.json", tmp_path / "out.json.gz")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "traceanalyzer-3f2a9c1b7d4e-77-rank3-20261130T045537.123Z.pt.trace.json.gz",
            "traceanalyzer-3f2a9c1b7d4e-77-rank3-20261130T045537.123Z.pt.trace.json.gz",
        ),
        ("/var/x/gpu-node17_4711.1759300074123.pt.trace.json.gz", r"trace-1759300074123-[0-9a-f]{12}\.json\.gz"),
        ("1759300074.123-TP-0-DECODE.trace.json.gz", r"trace-1759300074-TP0-DECODE-[0-9a-f]{12}\.json\.gz"),
        ("alice-rank2.json", r"trace-rank2-[0-9a-f]{12}\.json\.gz"),
        ("C:\\traces\\merger.json.zst", r"trace-[0-9a-f]{12}\.json\.gz"),
    ],
)
def test_names_of_files_keep_ranks_stages_and_times(name: str, expected: str) -> None:
    found = redacted_name(name)
    assert re.fullmatch(expected, found)
    assert redacted_name(found) == found


def test_facts_are_the_recorders_words(tmp_path: Path) -> None:
    block = {
        "schema": 1, "model": {"name": "llama-8b"}, "sampling": {"weight_s": 60.5},
        "window": {"engine": "vllm", "rank": 3, "recorder": "python"},
    }  # fmt: skip
    document = {"traceanalyzer": block, "host_name": "3f2a9c1b7d4e", "traceEvents": [kernel(1)], "schemaVersion": 1}
    source = write(tmp_path, document)
    found = facts(source)
    assert (found.model, found.engine, found.host, found.weight_s, found.rank) == (
        "llama-8b", "vllm", "3f2a9c1b7d4e", 60.5, 3,
    )  # fmt: skip
    assert (found.recording, found.level) == (None, None)
    redact_file(source, tmp_path / "out.json.gz")
    assert facts(tmp_path / "out.json.gz") == found.__class__(**{**_fields(found), "level": "default"})
    assert facts(write(tmp_path, trace())).model is None


def _fields(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}
