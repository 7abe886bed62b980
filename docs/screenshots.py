"""Take the documentation's screenshots of real reports, light and dark, with Chromium: `make screenshots`.

Reports that are looked at: a prefill on a GPU and a decode step replayed from a graph (from the trace collection that
lies beside the project, where it does), the CPU sample, and the page of eight simulated requests. What could be wrong:
fonts differ between machines, so the pictures are not compared by any test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from traceanalyzer import analyze, read_trace, render
from traceanalyzer.report.html import from_html

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", ROOT.parent / "shared")) / "traces"
IMAGES = ROOT / "docs" / "images"
REPORTS = {
    "gpu-prefill": SHARED / "h100-hf-qwen1.5-forward.json.gz",
    "graph-decode": SHARED / "mi300x-vllm-decode-full-graph.json.gz",
    "cpu-sample": ROOT / "samples" / "tiny-llama-cpu.json.gz",
    "eight-requests": ROOT / "samples" / "simulated-8b-eight.html",
}
WIDTH, HEIGHT = 1200, 900


def shoot(browser: Browser, page_file: Path, picture: Path, scheme: str, whole: bool) -> None:
    """One picture of a page in one colour scheme: the whole page, or its first screen."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(page_file.as_uri())
    page.screenshot(path=picture, full_page=whole)
    page.close()


def main() -> None:
    """Write the pictures to docs/images, or to --out for looking at whole pages."""
    parser = argparse.ArgumentParser(description="Take the documentation's screenshots.")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--whole", action="store_true", help="whole pages, not first screens")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"],
        )
        for name, trace in REPORTS.items():
            if not trace.is_file():
                print(f"skipped {name}: {trace.name} is not here")
                continue
            page_file = Path(folder) / f"{name}.html"
            report = from_html(trace.read_text("utf-8")) if trace.suffix == ".html" else analyze([read_trace(trace)])
            page_file.write_text(render(report, "html"), encoding="utf-8")
            for scheme in ("light", "dark"):
                picture = args.out / f"{name}-{scheme}.png"
                shoot(browser, page_file, picture, scheme, args.whole)
                print(picture)
        browser.close()


if __name__ == "__main__":
    main()
