"""One job from taken to ended: real children on real traces, and children that end in every other way."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.serving import trace_gz, trace_text
from traceanalyzer import __version__
from traceanalyzer.report import format as fmt
from traceanalyzer.server import child, sandbox, storing, worker
from traceanalyzer.server.blobs import REPORTS, key_of_report, key_of_trace
from traceanalyzer.server.database.models import Job
from traceanalyzer.server.sandbox import Outcome, Reason
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import AnalysisLimits, Settings
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.traces import Labels

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu.json.gz"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    opened = Services.open(Settings(folder=tmp_path / "server", analysis=AnalysisLimits(wall_s=120)))
    yield opened
    opened.close()


def store(services: Services, data: bytes, name: str = "run.json.gz") -> Job:
    sha256 = hashlib.sha256(data).hexdigest()
    body = services.settings.incoming / sha256
    body.write_bytes(data)
    services.blobs.put_file(key_of_trace(sha256), body)
    body.unlink()
    assert services.traces.add(sha256, len(data), len(data), Labels.checked(name=name), None, now_ms())
    return services.jobs.of(sha256)[-1]


def report(services: Services, sha256: str, kind: str) -> str:
    return b"".join(services.blobs.open(key_of_report(sha256, kind))).decode()


Behave = Callable[..., None]


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Behave:
    """Let the child end in a given way, after it has written what it is told to."""

    def set_up(
        reason: Reason = "done", code: int = 0, output: str = "", act: Callable[[Path], object] | None = None
    ) -> None:
        def run_child(
            argv: tuple[str, ...], limits: AnalysisLimits, folder: Path, stop: threading.Event | None = None
        ) -> Outcome:
            assert argv[0] == child.__name__
            for kind in REPORTS:
                (folder / kind).write_text(f"{kind} of {Path(argv[1]).name}")
            (folder / child.SUMMARY).write_text(json.dumps({"headline": "Fine.", "bound": "memory"}))
            if act is not None:
                act(folder)
            return Outcome(code, reason, output, 1, 0.1)

        monkeypatch.setattr(sandbox, "run_child", run_child)

    return set_up


def test_a_real_trace_is_analysed_and_listed_by_what_its_report_says(services: Services) -> None:
    job = store(services, SAMPLE.read_bytes(), "decode of tuesday.json.gz")
    assert worker.run(job.id, services) == "done"
    row, ended = services.traces.get(job.sha256), services.jobs.get(job.id)
    document = json.loads(report(services, job.sha256, "report.json"))
    assert row is not None
    assert ended is not None
    assert (row.state, ended.state, ended.attempts, ended.error, row.error) == ("analysed", "done", 1, None, None)
    assert document["traces"][0]["name"] == "decode of tuesday.json.gz"
    assert document["traces"][0]["sha256"] == job.sha256
    assert (row.headline, row.bound) == (document["verdict"]["headline"], document["verdict"]["bound"])
    assert (row.workload, row.gpu) == (document["run"]["workload"], document["devices"][0]["name"])
    assert row.span_us == document["span"]["duration_us"]
    decode = next(phase for phase in document["phases"] if phase["phase"] == "decode")
    assert row.tokens_per_s == decode["tokens_per_s"]
    assert (row.report_id, row.analyser) == (document["report_id"], __version__)
    severities = {note["severity"] for note in document["quality"]}
    assert row.quality == next((s for s in ("error", "warning", "info") if s in severities), None)
    assert "decode of tuesday.json.gz" in report(services, job.sha256, "report.md")
    page = report(services, job.sha256, "page.html")
    assert 'id="traceanalyzer-report"' in page
    assert row.report_bytes == sum(len(report(services, job.sha256, kind).encode()) for kind in REPORTS)
    assert list(services.settings.work.iterdir()) == []


def two_gaps() -> bytes:
    """Decode steps of a model that is described, 0.9 ms long and begun every 1.1 ms."""
    events = []
    for number in range(12):
        at = 1000.0 + 1100.0 * number
        shared = {"correlation": number + 1, "External id": number + 1}
        label = f"ta.step[decode n={number} tokens=1 seqs=1 ctx={100 + number} qk={100 + number}]"
        events += [
            {"ph": "X", "cat": "user_annotation", "name": label, "pid": 1, "tid": 1, "ts": at, "dur": 900.0},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 1, "dur": 2,
             "args": shared},
            {"ph": "X", "cat": "kernel", "name": "gemv", "pid": 0, "tid": 7, "ts": at + 10, "dur": 880.0,
             "args": {**shared, "device": 0, "stream": 7}},
        ]  # fmt: skip
    model = {"name": "m", "layers": 2, "hidden": 64, "weight_bytes": 1e9, "kv_bytes_per_token": 1e3}
    return json.dumps({
        "schemaVersion": 1, "traceEvents": events, "traceanalyzer": {"schema": 1, "model": model},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028765696}],
    }).encode()  # fmt: skip


@pytest.mark.parametrize("data", [SAMPLE.read_bytes(), two_gaps()], ids=["sample", "described"])
def test_the_step_of_the_list_is_the_step_of_the_headline(services: Services, data: bytes) -> None:
    job = store(services, data)
    assert worker.run(job.id, services) == "done"
    row = services.traces.get(job.sha256)
    assert row is not None and row.headline is not None
    said = re.search(r"A step takes ([0-9.,]+ [a-zµ]+)|, ([0-9.,]+ [a-zµ]+) as measured", row.headline)
    assert said, row.headline
    assert fmt.duration(row.decode_step_us) == (said[1] or said[2])


def test_what_the_file_says_of_itself_is_listed_where_nobody_else_has_said_it(services: Services) -> None:
    document = json.loads(trace_text(5))
    document["traceanalyzer"] = {
        "schema": 1,
        "redaction": {"level": "strict", "version": 1},
        "model": {"name": "tiny-7b"},
        "window": {"engine": "vllm"},
        "sampling": {"weight_s": 12.5},
    }
    job = store(services, json.dumps(document).encode())
    services.traces.add(job.sha256, 1, 1, Labels(model="said by the client"), None, now_ms())
    assert worker.run(job.id, services) == "done"
    row = services.traces.get(job.sha256)
    assert row is not None
    assert (row.redaction, row.model, row.engine, row.weight_s) == ("strict", "said by the client", "vllm", 12.5)
    assert "H100" in str(row.gpu)


def test_what_cannot_be_analysed_is_given_up_at_once_and_named_as_it_was_sent(services: Services) -> None:
    job = store(services, b'{"nothing": []}' + b" " * 40, "holiday.json")
    assert worker.run(job.id, services) == "dead"
    row, ended = services.traces.get(job.sha256), services.jobs.get(job.id)
    assert row is not None
    assert ended is not None
    assert (row.state, ended.state, ended.attempts) == ("failed", "dead", 1)
    assert row.error == ended.error
    assert "holiday.json" in str(ended.error)
    assert "\n" not in str(ended.error)
    assert job.sha256 not in str(ended.error)
    assert worker.run(job.id, services) is None
    assert list(services.blobs.keys("reports/")) == []


def test_limit_is_tried_again_and_then_given_up(
    tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = AnalysisLimits(memory_bytes=100 << 20, attempts=2)
    services = Services.open(Settings(folder=tmp_path / "server", analysis=limits))
    behave("memory", -9)
    job = store(services, b"1")
    clock = now_ms()
    monkeypatch.setattr(worker, "now_ms", lambda: clock)
    assert worker.run(job.id, services) == "failed"
    first = services.jobs.get(job.id)
    assert first is not None
    assert (first.state, first.error) == ("failed", "the analysis needed more than 100 MiB of memory")
    assert first.not_before == clock + 10_000
    assert worker.run(job.id, services) is None, "it waits"
    clock += 10_000
    assert worker.run(job.id, services) == "dead"
    last, row = services.jobs.get(job.id), services.traces.get(job.sha256)
    assert last is not None
    assert row is not None
    assert last.error == row.error == "the analysis needed more than 100 MiB of memory (2 attempts)"
    assert (row.state, last.attempts) == ("failed", 2)
    services.close()


@pytest.mark.parametrize(
    ("reason", "code", "output", "said"),
    [
        ("cpu", -24, "", "the analysis took more than 600 s of CPU time"),
        ("time", -9, "", "the analysis took longer than 120 s"),
        ("size", 72, "", "the analysis wrote more than 64 MiB"),
        ("killed", -11, "noise", "the analysis failed: killed by SIGSEGV"),
        ("killed", -61, "", "the analysis failed: killed by signal 61"),
        ("failed", 1, "Traceback\nKeyError: 'x'", "the analysis failed: KeyError: 'x'"),
        ("failed", 9, "", "the analysis failed: exit code 9"),
    ],
)
def test_how_it_ended_is_said_in_one_line(
    services: Services, behave: Behave, reason: Reason, code: int, output: str, said: str
) -> None:
    behave(reason, code, output)
    job = store(services, b"1")
    assert worker.run(job.id, services) == "failed"
    ended = services.jobs.get(job.id)
    assert ended is not None
    assert (ended.error, ended.output or "") == (said, output)


def test_trace_deleted_meanwhile_leaves_nothing(services: Services, behave: Behave) -> None:
    job = store(services, b"1")
    behave(act=lambda _: storing.forget(services, job.sha256))
    assert worker.run(job.id, services) == "discarded"
    assert list(services.blobs.keys()) == []
    assert services.jobs.get(job.id) is None


def test_trace_deleted_before_it_is_read_is_discarded(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    job = store(services, b"1")
    real = services.blobs.open

    def opened(key: str) -> Iterator[bytes]:
        storing.forget(services, job.sha256)
        return real(key)

    monkeypatch.setattr(type(services.blobs), "open", lambda _, key: opened(key))
    assert worker.run(job.id, services) == "discarded"


def test_hostile_child_cannot_publish_another_file(services: Services, behave: Behave, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("planted")

    def replace(folder: Path) -> None:
        (folder / "page.html").unlink()
        (folder / "page.html").symlink_to(tmp_path / "secret")

    behave(act=replace)
    job = store(services, b"1")
    assert worker.run(job.id, services) == "failed"
    assert services.blobs.size(key_of_report(job.sha256, "page.html")) is None
    row = services.traces.get(job.sha256)
    assert row is not None
    assert row.state == "queued"


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: (folder / child.SUMMARY).write_text("[" * 100_000),
        lambda folder: (folder / child.SUMMARY).write_text("7"),
        lambda folder: (folder / child.SUMMARY).unlink(),
        lambda folder: ((folder / child.SUMMARY).unlink(), os.mkfifo(folder / child.SUMMARY)),
        lambda folder: (folder / "report.md").unlink(),
    ],
    ids=["nested", "number", "none", "pipe", "no report"],
)
def test_child_that_leaves_no_result_failed(services: Services, behave: Behave, act: Callable[[Path], object]) -> None:
    behave(act=act)
    job = store(services, b"1")
    assert worker.run(job.id, services) == "failed"


def test_summary_is_taken_for_what_it_is(services: Services, behave: Behave) -> None:
    said = {"headline": "A\x1b[31m\u202eB" + "x" * 5000, "span_us": float("inf"), "gpu": ["a"], "tokens_per_s": True,
            "decode_step_us": 10**400, "quality": "info", "model": "m" * 500, "analyser": "0"}  # fmt: skip
    behave(act=lambda folder: (folder / child.SUMMARY).write_text(json.dumps(said)))
    job = store(services, b"1")
    assert worker.run(job.id, services) == "done"
    row = services.traces.get(job.sha256)
    assert row is not None
    assert row.headline is not None
    assert row.headline.isprintable()
    assert len(row.headline) < 1000
    assert (row.span_us, row.gpu, row.tokens_per_s, row.decode_step_us, row.model) == (None,) * 5
    assert (row.quality, row.analyser) == ("info", __version__)


@pytest.mark.parametrize(
    "name", ["\u6f22" * 190 + ".json.gz", "-o", "a b'\"$(x).json", "page.html", "trace"], ids=lambda name: name[:9]
)
def test_any_label_is_a_file_name(services: Services, behave: Behave, name: str) -> None:
    seen: list[str] = []
    behave(act=lambda folder: seen.extend(path.name for path in (folder / "trace").iterdir()))
    job = store(services, b"1", name)
    assert worker.run(job.id, services) == "done"
    assert len(seen) == 1
    assert name.endswith(seen[0])


def test_damaged_or_missing_blob_is_told_at_once(services: Services) -> None:
    job = store(services, trace_gz(2))
    assert services.settings.blobs is not None
    (services.settings.blobs / key_of_trace(job.sha256)).write_bytes(trace_gz(3))
    assert worker.run(job.id, services) == "dead"
    row = services.traces.get(job.sha256)
    assert row is not None
    assert "its hash is another" in str(row.error)
    gone = store(services, trace_gz(4))
    services.blobs.delete(key_of_trace(gone.sha256))
    assert worker.run(gone.id, services) == "dead"
    assert "gone" in str(services.jobs.get(gone.id).error)  # type: ignore[union-attr]


def test_full_disk_is_tried_again(services: Services, behave: Behave, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    behave()
    job = store(services, b"1")
    monkeypatch.setattr(type(services.blobs), "put_file", full)
    assert worker.run(job.id, services) == "failed"
    assert services.jobs.get(job.id).error == "the analysis could not be run: No space left on device"  # type: ignore[union-attr]


def test_stopped_job_is_given_back_as_if_it_had_not_run(services: Services) -> None:
    job = store(services, SAMPLE.read_bytes())
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    assert worker.run(job.id, services, stop) == "released"
    back, row = services.jobs.get(job.id), services.traces.get(job.sha256)
    assert back is not None
    assert row is not None
    assert (back.state, back.attempts, row.state) == ("queued", 0, "queued")
    assert list(services.settings.work.iterdir()) == []


def test_trace_that_ends_the_server_is_given_up(services: Services, behave: Behave) -> None:
    behave()
    job = store(services, b"1")
    for _ in range(services.settings.analysis.attempts):
        assert services.jobs.take(job.id, now_ms()) is not None
        assert services.jobs.recover() == 1  # the server was killed
    assert worker.run(job.id, services) == "dead"


def test_old_report_stays_when_a_renewal_fails(services: Services, behave: Behave) -> None:
    behave()
    job = store(services, b"1")
    assert worker.run(job.id, services) == "done"
    before = report(services, job.sha256, "page.html")
    again = services.jobs.requeue(job.sha256, "version")
    behave("refused", 2, "no longer read")
    assert worker.run(again.id, services) == "dead"
    row = services.traces.get(job.sha256)
    assert row is not None
    assert (row.state, row.headline) == ("analysed", "Fine.")
    assert report(services, job.sha256, "page.html") == before
