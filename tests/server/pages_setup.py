"""A server with pages for tests: its application, some traces in it, and a client that is a browser on this machine."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.report import factory
from traceanalyzer.report import html
from traceanalyzer.server.app import create_app
from traceanalyzer.server.blobs import key_of_report, key_of_trace
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Limits, Settings
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.traces import Found

RAW = b'{"traceEvents": []}'
MINUTE_MS = 60_000
MEMORY, HOST = (hashlib.sha256(name).hexdigest() for name in (b"memory", b"host"))


def opened(folder: Path, **settings: Any) -> Services:
    """Services in a folder, on a disk that may be nearly full."""
    limits = replace(settings.pop("limits", Limits()), min_free_bytes=0)
    return Services.open(Settings(folder=folder, limits=limits, **settings))


@contextmanager
def server(folder: Path, **settings: Any) -> Iterator[tuple[FastAPI, Services]]:
    """An application over services that are closed at the end."""
    services = opened(folder, **settings)
    try:
        yield create_app(services), services
    finally:
        services.close()


def browser(app: FastAPI, **options: Any) -> TestClient:
    """A client at the loopback interface, as a browser that follows nothing by itself."""
    return TestClient(
        app, base_url="http://localhost", client=("127.0.0.1", 40000), follow_redirects=False,
        headers={"Accept": "text/html"}, **options,
    )  # fmt: skip


def add(services: Services, sha256: str, labels: Labels, found: Found | None = None, age_ms: int = 0) -> None:
    """A stored trace; with `found` it is analysed and has a report."""
    at = now_ms() - age_ms
    file = services.settings.work / f"{sha256}.tmp"
    file.write_bytes(RAW)
    services.blobs.put_file(key_of_trace(sha256), file)
    file.unlink()
    services.traces.add(sha256, len(RAW), 101_000_000, labels, None, at)
    if found is None:
        return
    (job,) = services.jobs.of(sha256)
    assert services.jobs.take(job.id, at)
    for kind, text in (("page.html", report_page()), ("report.json", "{}"), ("report.md", "# Report\n")):
        file.write_text(text, encoding="utf-8")
        services.blobs.put_file(key_of_report(sha256, kind), file)
        file.unlink()
    services.traces.set_analysed(sha256, found, at)
    services.jobs.done(job.id, at)


def fill(services: Services) -> None:
    """Two analysed traces: one of a GPU bound by memory, just uploaded; one bound by the host, three hours old."""
    add(
        services,
        MEMORY,
        Labels(
            name="llama.pt.trace.json.gz", model="Llama-3-8B", engine="vLLM 0.33.0", environment="prod",
            host="3f9a2c71d0b4", revision="a1b2c3d", recording="rec-7", weight_s=600.0,
        ),
        Found(
            gpu="NVIDIA H100", headline="Decode is bound by memory: 71 % of the bandwidth is in use.", bound="memory",
            workload="generation", span_us=2_100_000.0, decode_step_us=12_500.0, tokens_per_s=2350.0, quality="warning",
            report_id="ab12cd34", analyser="0.1.0", report_bytes=342_000, redaction="default",
        ),
        age_ms=5 * MINUTE_MS,
    )  # fmt: skip
    add(
        services,
        HOST,
        Labels(name="qwen.json", model="Qwen3-32B", environment="staging", pinned=True),
        Found(gpu="NVIDIA H200", headline="Decode is bound by the host.", bound="host", analyser="0.1.0"),
        age_ms=180 * MINUTE_MS,
    )


@functools.cache
def report_page() -> str:
    """A real report."""
    return html.render(factory.ALL["gpu"]())


class Page(HTMLParser):
    """A page as a list of elements and their attributes, with the text that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self._hidden = 0
        self.feed(text)
        self.shown = re.sub(r"\s+", " ", self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._hidden += tag in ("script", "style", "template")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style", "template")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words += data + " "

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]
