"""Chromium for the tests of the page: started once per module, every request but the page's own refused."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import require

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium(*more: str) -> Iterator[Any]:
    require(Path(CHROMIUM).exists(), "Chromium is not installed")
    require(importlib.util.find_spec("playwright") is not None, "playwright is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *more])
        yield launched
        launched.close()


class Visit:
    """A page opened with everything but itself forbidden, and what it tried."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.own = file.as_uri()
        self.page.goto(self.own)

    def _route(self, route: Any) -> None:
        if route.request.url == self.own:
            route.continue_()
            return
        self.requests.append(route.request.url)
        route.abort()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
