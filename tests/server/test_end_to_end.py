"""From a running model to a link in a ticket: curl, the client, a browser, the collector and its sidecar, all real.

Four ways in, one server that asks for tokens: each trace's report is opened in a browser, and one of them by a share
link in a browser that has not signed in. When each thing was done is printed. What was planted into the client's trace
is then looked for in everything that the server keeps and has said.

What could be wrong: the times are those of a machine that may be busy; they are printed, and no limit is asserted.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.report.browsing import chromium
from tests.server.serving import COMMAND, Serving, make_token, serving, sha256, trace_text, until

ROOT = Path(__file__).resolve().parents[2]
BY_CURL = ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz"
BY_HAND = ROOT / "samples" / "tiny-llama-cpu.json.gz"
PATIENT_S = 240.0
PLANTED = {
    "token": "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",
    "host": "gpu-node-17.secret-cluster.example",
    "home": "/home/jane.doe/models",
    "mail": "jane.doe@secret-company.example",
}
GENERATE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=128, eos_token_id=None, pad_token_id=0, bos_token_id=None,
)).eval()
ids = torch.randint(1, 100, (1, 8))
model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=80, do_sample=False)
"""
DROP = """([name, data]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
  const area = document.getElementById("drop");
  for (const kind of ["dragenter", "dragover", "drop"]) {
    area.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""


class Timeline:
    """What was done when, in seconds from the beginning."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.lines: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        self.lines.append((time.monotonic() - self._begun, what))

    def __str__(self) -> str:
        return "\n".join(f"{at:6.1f} s  {what}" for at, what in self.lines)


@contextmanager
def recording(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`collect` around a tiny generation, which begins now and goes on beside everything else."""
    (folder / "generate.py").write_text(GENERATE, encoding="utf-8")
    words = [*COMMAND, "collect", "-o", "spool", "--quiet", "--", sys.executable, "generate.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def by_curl(server: Serving, token: str) -> str:
    """As the manual says it; the token comes from a file, not from the command line."""
    digest = sha256(BY_CURL.read_bytes())
    header = server.folder.parent / "header"
    header.write_text(f"Authorization: Bearer {token}\n")
    url = f"{server.url}api/v1/traces/{digest}?model=tiny-llama&name={BY_CURL.name}"
    words = ["curl", "--fail", "--silent", "--show-error", "-H", f"@{header}", "-T", str(BY_CURL), url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["url"] == f"{server.url}t/{digest}"
    return digest


def planted(folder: Path) -> Path:
    """A trace that holds what must not leave this machine, in places where profilers put it."""
    document = json.loads(trace_text(77))
    document["host_name"] = PLANTED["host"]
    document["traceName"] = f"{PLANTED['home']}/run.json"
    document["environment"] = {"HF_TOKEN": PLANTED["token"], "USER_EMAIL": PLANTED["mail"]}
    for number, text in enumerate(PLANTED.values()):
        document["traceEvents"].append(
            {"ph": "X", "cat": "user_annotation", "name": f"load {text}", "pid": 1, "tid": 1,
             "ts": 1000.0 + number, "dur": 0.5, "args": {"Concrete Inputs": [text], "path": text}}
        )  # fmt: skip
    path = folder / f"{PLANTED['host']}_4242.1700000000.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def by_client(server: Serving, path: Path, environment: dict[str, str]) -> str:
    words = [*COMMAND, "upload", str(path), "--to", server.url, "--label", "environment=staging"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().rpartition("/t/")[2]


def by_hand(page: Any, server: Serving, token: str) -> str:
    """Sign in, drop the file onto the page, follow the link to its report."""
    page.goto(f"{server.url}upload")
    page.fill("#token", token)
    page.click("button.primary")
    page.wait_for_url("**/upload")
    page.evaluate(DROP, [BY_HAND.name, base64.b64encode(BY_HAND.read_bytes()).decode()])
    page.wait_for_selector("#progress .next a:visible")
    page.click("#progress .next a")
    digest = sha256(BY_HAND.read_bytes())
    page.wait_for_url(f"**/t/{digest}")
    return digest


@contextmanager
def sidecar(server: Serving, spool: Path, environment: dict[str, str]) -> Iterator[None]:
    """`upload --watch` beside the collector; SIGTERM ends it, as Kubernetes does."""
    words = [*COMMAND, "upload", "--watch", str(spool), "--to", server.url]
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.kill()


def listed(server: Serving) -> dict[str, dict[str, Any]]:
    return {one["sha256"]: one for one in server.ask("GET", "/api/v1/traces?size=500").json()["traces"]}


def read(page: Any, server: Serving, digest: str) -> str:
    """The headline of the report in the trace's page."""
    page.goto(f"{server.url}t/{digest}")
    headline = page.frame_locator("iframe.report").locator("h2.headline")
    headline.wait_for()
    return str(headline.inner_text())


def shared(page: Any, server: Serving, digest: str) -> str:
    """The address of a link to a report, made on its page."""
    page.goto(f"{server.url}t/{digest}")
    page.click("text=Make a share link")
    page.wait_for_selector("#link")
    return str(page.get_attribute("#link", "value"))


def everything(server: Serving, pages: list[str]) -> Iterator[tuple[str, bytes]]:
    """All that is kept, unpacked where it is packed, all that was logged, and the pages."""
    for path in server.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            yield str(path), gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
            yield "a name", str(path.relative_to(server.folder)).encode()
    yield "the log", server.log().encode()
    yield from (("a page", text.encode()) for text in pages)


def test_four_ways_in_one_report_by_link(tmp_path: Path) -> None:
    require(shutil.which("curl") is not None, "curl is not installed")
    pytest.importorskip("torch")
    line = Timeline()
    folder = tmp_path / "server"
    upload, team = make_token(folder, "upload", name="upload"), make_token(folder, "read", "upload", name="team")
    environment = {**os.environ, "TRACEANALYZER_TOKEN": upload, "XDG_STATE_HOME": str(tmp_path / "state")}
    line.note("two tokens are made")
    with (
        recording(tmp_path) as collector,
        serving(folder, "--workers", "2", token=team) as server,
        chromium() as chrome,
    ):
        line.note("the server answers; the collector records a generation beside it")
        digests = {"curl": by_curl(server, upload)}
        line.note("curl has sent a trace")
        digests["client"] = by_client(server, planted(tmp_path), environment)
        line.note("the client has redacted and sent a trace")
        page = chrome.new_context().new_page()
        page.set_default_timeout(PATIENT_S * 1000)
        digests["drop"] = by_hand(page, server, team)
        line.note("a dropped trace is sent and analysed")
        assert collector.wait(PATIENT_S) == 0
        line.note("the collector has ended")
        written = {path.name for path in (tmp_path / "spool").rglob("*.pt.trace.json.gz")}
        assert len(written) == 2  # of 80 steps, 64 each
        with sidecar(server, tmp_path / "spool", environment):
            until(lambda: len(listed(server)) == len(digests) + len(written), PATIENT_S)
            line.note("the sidecar has sent the collector's windows")
        until(lambda: {one["state"] for one in listed(server).values()} == {"analysed"}, PATIENT_S)
        line.note("all are analysed")
        pushed = set(listed(server)) - set(digests.values())
        assert len({listed(server)[digest]["recording"] for digest in pushed} - {None}) == 1
        assert all(read(page, server, digest) for digest in (*digests.values(), *pushed))
        line.note("the browser has opened every report")
        link = shared(page, server, digests["curl"])
        with chrome.new_context() as stranger:
            visitor = stranger.new_page()
            visitor.set_default_timeout(PATIENT_S * 1000)
            visitor.goto(f"{server.url}t/{digests['curl']}")
            assert "/login" in visitor.url
            visitor.goto(link)
            visitor.frame_locator("iframe.report").locator("h2.headline").wait_for()
        line.note("a stranger has opened one by its link")
        texts = [server.ask("GET", path).text for path in ("/", f"/t/{digests['client']}", "/jobs", "/metrics")]
        found = [(place, what) for place, data in everything(server, texts) for what, text in PLANTED.items()
                 if text.encode() in data]  # fmt: skip
        assert found == []
        assert server.end() == 0
    print(f"\n{line}")
