"""The pages in Chromium: by drag and drop, by keyboard, without JavaScript, in any theme and width, asking nobody."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Error as PlaywrightError

from tests.report.browsing import chromium
from tests.server.pages_setup import HOST, MEMORY, RAW, add, fill, opened
from traceanalyzer.server.app import create_app
from traceanalyzer.server.blobs import key_of_report, key_of_trace
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.queue import Queue
from traceanalyzer.server.services import Services
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.traces import Found

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz"
SHA = hashlib.sha256(SAMPLE.read_bytes()).hexdigest()
NAMED = "traces.test"
PATIENCE_MS = 60_000
LONG = hashlib.sha256(b"long").hexdigest()


class Live:
    """A server on a port of this machine, in threads of this process."""

    def __init__(self, folder: Path, analysing: bool = False, **settings: Any) -> None:
        self.services: Services = opened(folder, **settings)
        self.queue = Queue(self.services) if analysing else None
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        app = create_app(self.services, self.queue)
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", http="h11", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Live:
        if self.queue:
            self.queue.start()
        self._thread.start()
        end = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < end
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        if self.queue:
            self.queue.stop(1)
        self._socket.close()
        self.services.close()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with chromium(f"--host-resolver-rules=MAP {NAMED} 127.0.0.1") as launched:
        yield launched


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("filled") / "server", allowed_hosts=(NAMED,)) as live:
        fill(live.services)
        hostile = '<script>document.title="PWNED"</script>' + "W" * 160
        add(live.services, LONG, Labels(name="a.json"), Found(headline="x" * 190, gpu=hostile))
        long = Labels(name=hostile.replace("/", "")[:200], model="y" * 200, engine="\u05e9" * 200, environment=hostile)
        live.services.traces.add(LONG, 1, 1, long, None, now_ms())
        job = live.services.jobs.requeue(HOST, "manual")
        live.services.jobs.take(job.id, now_ms())
        live.services.jobs.dead(job.id, "z" * 300, now_ms(), "line\n" + "w" * 500)
        live.services.links.make(MEMORY, None, 86_400)
        for subject, detail in ((MEMORY, "html"), (LONG, ""), ("u" * 200, hostile * 20), ("0" * 64, "v" * 1000)):
            live.services.audit.note("local" if detail == "html" else "w" * 190, "view", subject, detail)
        yield live


@pytest.fixture
def analysing(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path / "server", analysing=True) as live:
        yield live


class Window:
    """A browser window on a server, which remembers what it asked of others and what it complained of."""

    def __init__(self, chrome: Any, live: Live, **options: Any) -> None:
        self.context = chrome.new_context(**options)
        self.url = live.url
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self.context.route(lambda url: not url.startswith((live.url, f"http://{NAMED}:")), self._refuse)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _refuse(self, route: Any) -> None:
        self.elsewhere.append(route.request.url)
        route.abort()

    def go(self, path: str) -> Any:
        return self.page.goto(self.url + path)


@contextmanager
def window(chrome: Any, live: Live, **options: Any) -> Iterator[Window]:
    shown = Window(chrome, live, **options)
    try:
        yield shown
    finally:
        shown.context.close()


def paths(live: Live) -> list[str]:
    _, secret = live.services.links.make(MEMORY, None)
    traces = [f"/t/{sha256}{more}" for sha256 in (MEMORY, HOST, LONG) for more in ("", "/delete")]
    return ["/", "/?text=none", "/upload", "/jobs", "/audit", "/login", f"/s/{secret}", *traces]


DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  const area = document.getElementById("drop");
  for (const kind of ["dragenter", "dragover", "drop"]) {
    area.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""
WATCH = """() => {
  window.seen = [];
  new MutationObserver(() => {
    const told = document.querySelector("#progress .told");
    const bar = document.querySelector("#progress progress");
    if (told) window.seen.push([told.textContent, bar ? bar.position : null]);
  }).observe(document.getElementById("progress"),
             { subtree: true, childList: true, characterData: true, attributes: true });
}"""


def test_a_file_that_is_dropped_becomes_a_report(chrome: Any, analysing: Live) -> None:
    with window(chrome, analysing) as shown:
        shown.go("/upload")
        shown.page.click("summary")
        shown.page.fill("#u-model", "Tiny Llama")
        shown.page.evaluate(WATCH)
        shown.page.evaluate(DROP, [SAMPLE.name, base64.b64encode(SAMPLE.read_bytes()).decode()])
        shown.page.wait_for_selector("#progress .next a:visible")
        seen = shown.page.evaluate("window.seen")
        said = list(dict.fromkeys(line for line, _ in seen))
        assert said[0] in ("Waiting for its turn", "Hashing")
        assert "Sending" in said
        assert said[-1] == "The report is ready"
        assert 1 in [at for line, at in seen if line == "Sending"], "the bar was seen to be full"
        assert shown.page.inner_text("#said") == f"{SAMPLE.name}: The report is ready"
        shown.page.click("#progress .next a")
        shown.page.wait_for_url(f"**/t/{SHA}")
        frame = shown.page.frame_locator("iframe.report")
        frame.locator("h2.headline").wait_for()
        assert "Tiny Llama" in shown.page.inner_text("main")
        assert shown.complaints == []
        assert shown.elsewhere == []
    assert b"".join(analysing.services.blobs.open(key_of_trace(SHA))) == SAMPLE.read_bytes()


def test_files_that_cannot_be_taken_are_told_one_by_one(chrome: Any, filled: Live) -> None:
    files = [
        {"name": "zip.json", "mimeType": "application/json", "buffer": b"PK\x03\x04" + b"0" * 64},
        {"name": "good.json", "mimeType": "application/json", "buffer": b'{"traceEvents": [], "n": 1}'},
        {"name": "<b>x.json", "mimeType": "application/json", "buffer": b"hello"},
    ]
    with window(chrome, filled) as shown:
        shown.go("/upload")
        shown.page.set_input_files("#files", files)
        shown.page.click("button.primary")
        shown.page.locator("#progress .told.bad").nth(1).wait_for()
        rows = shown.page.locator("#progress li").all_inner_texts()
        assert len(rows) == 3
        assert "zip" in rows[0].splitlines()[-1].lower()
        assert "waiting for analysis" in rows[1]
        assert rows[2].startswith("<b>x.json")
        filled.services.traces.set_failed(hashlib.sha256(files[1]["buffer"]).hexdigest(), "no")  # type: ignore[arg-type]
        shown.page.wait_for_selector("#progress .next a:visible")
        assert "the analysis failed" in shown.page.locator("#progress li").nth(1).inner_text()


def test_a_file_too_large_for_the_server_or_the_browser_is_not_read(chrome: Any, filled: Live) -> None:
    big = "Object.defineProperty(File.prototype, 'size', {get() { return 600 * 2 ** 20; }})"
    with window(chrome, filled) as shown:
        requests: list[str] = []
        shown.page.on("request", lambda request: requests.append(request.method))
        shown.go("/upload")
        shown.page.evaluate(big)
        shown.page.evaluate(DROP, ["a.json", base64.b64encode(RAW).decode()])
        shown.page.wait_for_selector(".told.bad")
        assert "larger than this server takes" in shown.page.inner_text("#progress")
        shown.page.evaluate("document.getElementById('upload').dataset.most = '1e12'")
        shown.page.evaluate(DROP, ["b.json", base64.b64encode(RAW).decode()])
        shown.page.locator(".told.bad").nth(1).wait_for()
        assert "traceanalyzer upload" in shown.page.locator("#progress li").nth(1).inner_text()
        assert "PUT" not in requests


def test_the_form_uploads_without_javascript(chrome: Any, analysing: Live) -> None:
    with window(chrome, analysing, java_script_enabled=False) as shown:
        shown.go("/upload")
        assert "Or drop files" not in shown.page.inner_text("main")
        shown.page.set_input_files("#files", str(SAMPLE))
        shown.page.click("button.primary")
        shown.page.wait_for_url(f"**/t/{SHA}")
        shown.page.wait_for_selector("iframe.report")  # the page asks again by itself
        assert "Workload generation" in shown.page.frame_locator("iframe.report").locator("main").inner_text()
        shown.page.click("text=Make a share link")
        link = shown.page.get_attribute("#link", "value")
        assert not shown.page.is_visible("#copy-link")
        shown.page.goto(link)
        assert shown.page.is_visible("iframe.report")
        assert shown.elsewhere == []


def test_where_the_browser_cannot_hash_the_form_is_sent_as_it_is(chrome: Any, filled: Live) -> None:
    """Plain HTTP under a name: no hashing, and no Sec-Fetch-Site either, so the form is told by its Origin."""
    content = b'{"traceEvents": [], "n": 2}'
    with window(chrome, filled) as shown:
        shown.page.goto(f"http://{NAMED}:{filled.port}/upload")
        assert shown.page.evaluate("globalThis.crypto.subtle === undefined")
        assert shown.page.is_visible("#plain-note")
        assert "Or drop files" not in shown.page.inner_text("main")
        shown.page.set_input_files("#files", {"name": "p.json", "mimeType": "application/json", "buffer": content})
        shown.page.click("button.primary")
        shown.page.wait_for_url(f"**/t/{hashlib.sha256(content).hexdigest()}")
        shown.page.click("text=Pin")
        shown.page.wait_for_selector("text=Unpin")


def test_a_page_of_a_waiting_trace_shows_its_report_by_itself(chrome: Any, tmp_path: Path) -> None:
    with Live(tmp_path / "server") as live, window(chrome, live) as shown:
        add(live.services, MEMORY, Labels(name="a.json"))
        shown.go(f"/t/{MEMORY}")
        assert shown.page.is_visible(".waiting")
        live.services.traces.set_analysed(MEMORY, Found(headline="Done"), now_ms())
        shown.page.wait_for_selector("iframe.report")


def test_everything_can_be_done_by_keyboard(chrome: Any, tmp_path: Path) -> None:
    with Live(tmp_path / "server") as live, window(chrome, live) as shown:
        fill(live.services)
        _, token = live.services.tokens.make("keys", ["admin"])
        keyboard = shown.page.keyboard

        def tab_to(test: str, most: int = 60) -> None:
            for _ in range(most):
                keyboard.press("Tab")
                if shown.page.evaluate(f"(() => {{ const e = document.activeElement; return {test}; }})()"):
                    assert shown.page.evaluate(
                        "(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== 'none' "
                        "&& parseFloat(s.outlineWidth) >= 2; })()"
                    ), "focus can be seen"
                    return
            raise AssertionError(test)

        shown.go("/")
        assert shown.page.evaluate("document.activeElement.id") == "token"
        keyboard.type(token)
        keyboard.press("Enter")
        shown.page.wait_for_selector("table.traces")
        tab_to("e.className === 'skip'")
        keyboard.press("Enter")
        assert shown.page.url.endswith("#content")
        tab_to("e.id === 'f-text'")
        keyboard.type("llama")
        keyboard.press("Enter")
        shown.page.wait_for_url("**/?text=llama*")
        tab_to(f"e.pathname === '/t/{MEMORY}'")
        keyboard.press("Enter")
        shown.page.wait_for_url(f"**/t/{MEMORY}")
        tab_to("e.hash === '#share'")
        keyboard.press("Enter")
        tab_to("e.id === 'expires'")
        keyboard.press("ArrowDown")
        tab_to("e.textContent.trim() === 'Make a share link'")
        keyboard.press("Enter")
        shown.page.wait_for_selector("#link")
        tab_to(f"e.pathname === '/t/{MEMORY}'")
        keyboard.press("Enter")
        shown.page.wait_for_url(f"**/t/{MEMORY}")
        tab_to("e.textContent.trim().startsWith('Delete')", 150)
        keyboard.press("Enter")
        shown.page.wait_for_url("**/delete")
        tab_to("e.textContent.trim() === 'Delete it'")
        keyboard.press("Enter")
        shown.page.wait_for_selector("table.traces")
        assert live.services.traces.get(MEMORY) is None
        tab_to("e.textContent.trim() === 'Sign out'")
        keyboard.press("Enter")
        shown.page.wait_for_url("**/login")


def test_a_link_in_a_ticket_opens_the_page_for_who_is_signed_in(chrome: Any, tmp_path: Path) -> None:
    with Live(tmp_path / "server") as live, window(chrome, live) as shown:
        fill(live.services)
        _, token = live.services.tokens.make("someone", ["read", "upload"])
        ticket = (
            f'<a href="{live.url}/t/{MEMORY}">the trace</a>'
            f'<form method="post" action="{live.url}/t/{MEMORY}/pin"><button>Pin</button></form>'
        )
        shown.context.route(
            "http://tickets.example/**", lambda route: route.fulfill(body=ticket, content_type="text/html")
        )
        shown.go("/login")
        shown.page.fill("input[name=token]", token)
        shown.page.press("input[name=token]", "Enter")
        shown.page.wait_for_url(f"{live.url}/")
        shown.page.goto("http://tickets.example/1")
        shown.page.click("a")
        shown.page.wait_for_url(f"{live.url}/**")
        assert shown.page.url == f"{live.url}/t/{MEMORY}"
        assert "llama.pt.trace.json.gz" in shown.page.inner_text("h1")
        live.services.traces.pin(MEMORY, False)
        shown.page.goto("http://tickets.example/1")
        with shown.page.expect_response(f"{live.url}/t/{MEMORY}/pin") as answered:
            shown.page.click("button")
        assert answered.value.status == 403
        row = live.services.traces.get(MEMORY)
        assert row is not None
        assert not row.pinned


def test_no_page_complains_or_asks_anybody_else(chrome: Any, filled: Live) -> None:
    with window(chrome, filled) as shown:
        for path in paths(filled):
            shown.go(path)
            shown.page.wait_for_load_state("networkidle")
            shown.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            assert shown.page.title().endswith("traceanalyzer"), path
        assert shown.complaints == []
        assert shown.elsewhere == []


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_no_page_scrolls_sideways(chrome: Any, filled: Live, width: int) -> None:
    with window(chrome, filled, viewport={"width": width, "height": 800}) as shown:
        for path in paths(filled):
            shown.go(path)
            shown.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            assert shown.page.evaluate("document.documentElement.scrollWidth") <= width, path


CONTRAST = """() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (colour) => {
    const [r, g, b] = channels(colour).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("noscript")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => x - y);
    const ratio = (b + 0.05) / (a + 0.05);
    if (ratio < 4.5 && !element.matches(".between")) poor.push([element.outerHTML.slice(0, 80), ratio]);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_apply_and_can_be_read(chrome: Any, filled: Live, scheme: str) -> None:
    with window(chrome, filled, color_scheme=scheme) as shown:
        for path in paths(filled):
            shown.go(path)
            assert shown.page.evaluate(CONTRAST) == [], path
        ground = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(246, 247, 249)") == (scheme == "light")


def test_paper_shows_the_list_and_no_controls(chrome: Any, filled: Live) -> None:
    with window(chrome, filled) as shown:
        shown.page.emulate_media(media="print")
        shown.go("/")
        assert shown.page.is_visible("table.traces")
        for control in ("form.filters", "nav", "a.button"):
            assert not shown.page.is_visible(control), control
        shown.go(f"/t/{MEMORY}")
        assert not shown.page.is_visible("iframe")
        assert "prints in full" in shown.page.inner_text("main")
        assert shown.page.pdf(format="A4").startswith(b"%PDF")


def test_the_link_is_copied(chrome: Any, filled: Live) -> None:
    with window(chrome, filled, permissions=["clipboard-read", "clipboard-write"]) as shown:
        shown.go(f"/t/{MEMORY}")
        shown.page.click("text=Make a share link")
        shown.page.click("#copy-link")
        shown.page.wait_for_selector("text=Copied")
        link = shown.page.get_attribute("#link", "value")
        assert shown.page.evaluate("navigator.clipboard.readText()") == link
        shown.page.goto(link)
        assert shown.page.frame_locator("iframe").locator("h2.headline").inner_text()


# A report that does its worst


WORST = """<!doctype html><title>report</title><p id=out>no script</p><script>
const done = {};
const attempt = (name, act) => { try { done[name] = String(act()); } catch (error) { done[name] = "refused"; } };
attempt("cookie", () => document.cookie);
attempt("storage", () => localStorage.length);
attempt("parent", () => parent === self ? window.x.y : parent.document.title);
if (top !== self) attempt("top", () => { top.location = "https://evil.example/"; return "moved"; });
attempt("open", () => window.open("https://evil.example/"));
attempt("alert", () => alert(1));
fetch("/api/v1/traces").then(() => { done.fetch = "done"; }, () => { done.fetch = "refused"; }).then(() => {
  const form = document.createElement("form");
  form.method = "post"; form.action = "/t/SHA/delete"; document.body.append(form); form.submit();
  new Image().src = "https://evil.example/x.png";
  document.getElementById("out").textContent = JSON.stringify(done);
});
</script>"""


@pytest.mark.parametrize("framed", [True, False])
def test_a_hostile_report_reaches_nothing(chrome: Any, tmp_path: Path, framed: bool) -> None:
    with Live(tmp_path / "server") as live, window(chrome, live) as shown:
        fill(live.services)
        file = tmp_path / "page.html"
        file.write_text(WORST.replace("SHA", MEMORY), encoding="utf-8")
        live.services.blobs.put_file(key_of_report(MEMORY, "page.html"), file)
        _, token = live.services.tokens.make("reader", ["admin"])
        shown.go("/login")
        shown.page.fill("#token", token)
        shown.page.keyboard.press("Enter")
        shown.page.wait_for_selector("table.traces")
        requests: list[str] = []
        shown.page.on("request", lambda request: requests.append(f"{request.method} {request.url}"))
        where = f"/t/{MEMORY}" if framed else f"/api/v1/traces/{MEMORY}/report"
        shown.go(where)
        inner = shown.page.frame_locator("iframe.report") if framed else shown.page
        out = inner.locator("#out")
        out.filter(has_text="fetch").wait_for()
        done = out.inner_text()
        for name in ("cookie", "storage", "parent", "fetch"):
            assert f'"{name}":"refused"' in done, done
        shown.page.wait_for_timeout(500)
        if framed:
            assert '"top":"refused"' in done
            assert shown.page.url == live.url + where
            assert not [asked for asked in requests if "POST" in asked or "/api/v1/traces?" in asked]
        assert live.services.traces.get(MEMORY) is not None
        assert len(shown.context.pages) == 1
        assert not [asked for asked in shown.elsewhere if not asked.endswith("evil.example/")]
        assert "PWNED" not in shown.page.title()


# Perfetto, which is played by a page of ours


PERFETTO = """<!doctype html><title>waiting</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") { if (ANSWERS) event.source.postMessage("PONG", event.origin); return; }
  const given = event.data.perfetto;
  const text = new TextDecoder().decode(given.buffer);
  document.title = JSON.stringify([given.title, given.fileName, text, event.origin]);
});
</script>"""


def play_perfetto(shown: Window, answers: bool) -> list[str]:
    asked: list[str] = []

    def answer(route: Any) -> None:
        asked.append(route.request.url)
        body = PERFETTO.replace("ANSWERS", "true" if answers else "false")
        with suppress(PlaywrightError):  # the window may be closed by now
            route.fulfill(body=body, content_type="text/html")

    shown.context.route("https://ui.perfetto.dev/**", answer)
    return asked


def test_a_trace_is_handed_to_perfetto_when_asked_for(chrome: Any, filled: Live) -> None:
    with window(chrome, filled) as shown:
        asked = play_perfetto(shown, answers=True)
        shown.go(f"/t/{MEMORY}")
        shown.page.wait_for_load_state("networkidle")
        assert asked == []
        with shown.context.expect_page() as opening:
            shown.page.click("#perfetto")
        view = opening.value
        view.wait_for_function("document.title !== 'waiting'")
        name = "llama.pt.trace.json.gz"
        assert view.title() == f'["{name}","{name}","{{\\"traceEvents\\": []}}","{filled.url}"]'
        shown.page.wait_for_selector("text=Perfetto has the trace")
        assert asked == ["https://ui.perfetto.dev/"]
        assert shown.page.is_enabled("#perfetto")


def test_why_perfetto_does_not_open_a_trace_is_told(chrome: Any, filled: Live) -> None:
    with window(chrome, filled) as shown:
        play_perfetto(shown, answers=False)
        shown.go(f"/t/{MEMORY}")
        raw = f"{filled.url}/api/v1/traces/{MEMORY}"

        def click() -> Any:
            with shown.context.expect_page() as opening:
                shown.page.click("#perfetto")
            return opening.value

        view = click()
        shown.page.wait_for_selector("text=Waiting for Perfetto")
        view.close()
        shown.page.wait_for_selector("text=did not answer")
        shown.context.route(raw, lambda route: route.fulfill(status=401, body="{}"))
        click()
        shown.page.wait_for_selector("text=did not give the trace out")
        shown.context.unroute(raw)
        shown.context.route(raw, lambda route: route.fulfill(body=b"\x28\xb5\x2f\xfd\x00"))
        click()
        shown.page.wait_for_selector("text=does not read Zstandard")
        shown.page.evaluate("window.open = () => null")
        shown.page.click("#perfetto")
        shown.page.wait_for_selector("text=blocked the new window")
        shown.page.evaluate("document.getElementById('perfetto').dataset.bytes = '3e9'")
        shown.page.click("#perfetto")
        shown.page.wait_for_selector("text=more than 2 GB")
