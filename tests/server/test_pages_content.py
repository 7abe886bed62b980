"""What the pages say: figures, filters, states, and nothing that a hostile name could become."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from tests.server.pages_setup import HOST, MEMORY, MINUTE_MS, Page, add, browser, fill, server
from traceanalyzer.server.database.models import Audit as Entry
from traceanalyzer.server.database.models import Job, Trace
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.pages import rendering, words
from traceanalyzer.server.pages.moments import moment
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Limits
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.traces import Found

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = {
    "html": '<script>document.title="PWNED"</script><img src=x onerror="document.title=1">',
    "attribute": "\"><svg/onload=alert(1)>' autofocus onfocus=alert(1) x='",
    "long": "x" * 200,
    "turned": "safe\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe\x00\x1b[31m",
    "template": "{{ 7 * 7 }}{% raw %}",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Services]]:
    with server(tmp_path_factory.mktemp("server")) as (app, services):
        fill(services)
        yield browser(app), services


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, list[str]]]:
    """Every text that a stranger can reach, past the check of labels, as an older version may have stored it."""
    with server(tmp_path_factory.mktemp("server")) as (app, services):
        names = []
        for text in HOSTILE.values():
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            names.append(sha256)
            add(services, sha256, Labels(name="a.json"), Found(headline="h"))
            label = dict.fromkeys(
                ("name", "model", "engine", "host", "revision", "environment", "recording", "gpu", "headline", "bound",
                 "workload", "quality", "report_id", "analyser", "redaction", "error"), text,
            )  # fmt: skip
            with services.database.session() as session:
                session.execute(update(Trace).where(Trace.sha256 == sha256).values(**label, uploaded_by=text[:12]))
                session.execute(
                    update(Job).where(Job.sha256 == sha256).values(state="dead", error=text, output=f"{text}\n{text}")
                )
                session.add(Entry(at=10**18, actor=text, action=text, subject=text, detail=text * 30))
        yield browser(app), names


def test_the_list_says_what_was_found(filled: tuple[TestClient, Services]) -> None:
    client, _ = filled
    answer = client.get("/")
    shown = Page(answer.text).shown
    assert answer.status_code == 200
    first, second = shown.index("Decode is bound by memory"), shown.index("Decode is bound by the host.")
    assert first < second, "the newest first"
    for part in ("71 %", "Bound by memory", "Llama-3-8B", "NVIDIA H100", "vLLM 0.33.0", "prod",
                 "12.5 ms", "2,350", "600 s", "5 min ago", "Warnings",
                 "Redacted (default)", "llama.pt.trace.json.gz"):  # fmt: skip
        assert part in shown[first:second], part
    for part in ("unknown", "3 h ago", "Complete", "Not redacted", "Pinned", "qwen.json"):
        assert part in shown[second:], part
    assert " 0 " not in shown[second:]
    assert f'href="/t/{MEMORY}"' in answer.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("text=llama", [MEMORY]), ("text=QWEN3", [HOST]), ("text=bandwidth+71", [MEMORY]), ("model=Qwen3-32B", [HOST]),
        ("engine=vLLM+0.33.0", [MEMORY]), ("environment=staging", [HOST]), ("gpu=NVIDIA+H200", [HOST]),
        ("bound=memory", [MEMORY]), ("state=analysed", [MEMORY, HOST]), ("state=failed", []), ("since=hour", [MEMORY]),
        ("since=day", [MEMORY, HOST]), ("model=Qwen3-32B&bound=memory", []), ("text=%25", [MEMORY]),
        ("since=nonsense", [MEMORY, HOST]),
        ("text=+", [MEMORY, HOST]),
    ],
)  # fmt: skip
def test_filters_narrow_the_list(filled: tuple[TestClient, Services], query: str, found: list[str]) -> None:
    client, _ = filled
    answer = client.get(f"/?{query}")
    assert answer.status_code == 200
    assert re.findall(r'href="/t/([0-9a-f]{64})"', answer.text) == found
    assert ("No trace is like that." in answer.text) == (not found)


def test_filters_stay_in_the_form(filled: tuple[TestClient, Services]) -> None:
    client, _ = filled
    page = Page(client.get("/?text=a%22b&bound=host&since=week").text)
    assert [field["value"] for field in page.all("input") if field["name"] == "text"] == ['a"b']
    assert [choice["value"] for choice in page.all("option") if "selected" in choice] == ["host", "", "week"]
    suggested = [choice["value"] for choice in Page(client.get("/").text).all("option")]
    assert {"Llama-3-8B", "Qwen3-32B", "NVIDIA H200"} <= set(suggested)


def test_pages_of_the_list_hold_every_trace_once(tmp_path: Path) -> None:
    with server(tmp_path, limits=Limits(page_size=3)) as (app, services):
        made = [hashlib.sha256(bytes([number])).hexdigest() for number in range(8)]
        for number, sha256 in enumerate(made):
            services.traces.add(sha256, 1, 1, Labels(name=f"{number}.json", model="m"), None, 1000 * number)
        client, path, seen = browser(app), "/?model=m", []
        for _ in range(4):
            text = client.get(path).text
            seen += re.findall(r'href="/t/([0-9a-f]{64})"', text)
            following = re.findall(r'<a href="([^"]+)" rel="next">', text)
            if not following:
                break
            path = following[0].replace("&amp;", "&")
            assert "model=m" in path
        assert seen == made[::-1]
        assert "8 traces" in text
        assert client.get("/?after=nonsense").status_code == 400


def test_an_empty_server_says_how_to_begin(tmp_path: Path) -> None:
    with server(tmp_path, public_url="https://traces.example") as (app, _):
        shown = Page(browser(app).get("/").text).shown
    assert "No trace yet." in shown
    assert "traceanalyzer upload TRACE --to https://traces.example" in shown
    assert "There is no token yet" in shown


def test_a_trace_s_page_says_everything_that_is_known(filled: tuple[TestClient, Services]) -> None:
    client, _ = filled
    answer = client.get(f"/t/{MEMORY}")
    page = Page(answer.text)
    for part in ("Llama-3-8B", "vLLM 0.33.0", "NVIDIA H100", "prod", "3f9a2c71d0b4", "a1b2c3d", "rec-7", "600 s",
                 "generation", "2.10 s", "12.5 ms", "2,350", "19.0 B, 101 MB unpacked", "342 kB", "ab12cd34", MEMORY,
                 "Analysed", "Redacted (default)", "Warnings"):  # fmt: skip
        assert part in page.shown, part
    (frame,) = page.all("iframe")
    assert frame["sandbox"] == "allow-scripts"
    assert frame["src"] == f"/api/v1/traces/{MEMORY}/report?format=html"
    assert frame["title"]
    targets = {link.get("href") for link in page.all("a")}
    assert {f"/api/v1/traces/{MEMORY}", f"/api/v1/traces/{MEMORY}/report?format=json",
            f"/api/v1/traces/{MEMORY}/report?format=md", f"/t/{MEMORY}/delete"} <= targets  # fmt: skip
    for target in sorted(target for target in targets if target and target.startswith("/")):
        assert client.get(target).status_code == 200, target
    served = client.get(frame["src"])
    assert served.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert "frame-ancestors 'self'" in served.headers["content-security-policy"]
    assert served.headers["x-frame-options"] != "DENY"
    assert client.get(f"/api/v1/traces/{MEMORY}").headers["content-disposition"].startswith("attachment")


def test_a_report_from_before_says_so(tmp_path: Path) -> None:
    with server(tmp_path) as (app, services):
        fill(services)
        client = browser(app)
        assert "from before" not in client.get(f"/t/{MEMORY}").text
        job = services.jobs.requeue(MEMORY, "version")
        assert "being analysed again; this is the report from before" in client.get(f"/t/{MEMORY}").text
        services.jobs.take(job.id, now_ms())
        services.jobs.dead(job.id, "too much memory", now_ms())
        page = client.get(f"/t/{MEMORY}").text
        assert "The reason: too much memory" in page
        assert "<iframe" in page


def test_states_before_there_is_a_report(tmp_path: Path) -> None:
    with server(tmp_path) as (app, services):
        client = browser(app)
        add(services, MEMORY, Labels(name="a.json"))
        waiting = client.get(f"/t/{MEMORY}")
        assert "Waiting for analysis" in waiting.text
        assert '<meta http-equiv="refresh" content="5">' in waiting.text
        assert "<iframe" not in waiting.text
        (job,) = services.jobs.of(MEMORY)
        services.jobs.take(job.id, now_ms())
        assert "Being analysed" in client.get(f"/t/{MEMORY}").text
        services.jobs.dead(job.id, "it used more memory than it may", now_ms(), "a line\nanother")
        failed = client.get(f"/t/{MEMORY}").text
        assert "It used more memory than it may." in failed
        assert "refresh" not in failed
        jobs = Page(client.get("/jobs?state=dead").text).shown
        for part in ("Failed, given up", "It used more memory than it may.", "another", "Try again", "a.json"):
            assert part in jobs, part
        assert "No such job." in client.get("/jobs?state=running").text
        assert "a.json" in client.get("/jobs?state=nonsense").text


@pytest.mark.parametrize("path", ["/t/", "/t/zz", f"/t/{'0' * 64}", f"/t/{'0' * 64}/delete", "/jobs/x", "/s/x"])
def test_what_is_not_there_is_told_so(filled: tuple[TestClient, Services], path: str) -> None:
    assert filled[0].get(path).status_code in (404, 405)


def pages_of(names: list[str]) -> list[str]:
    made = [
        "/",
        "/upload",
        "/jobs",
        "/login",
        "/jobs?state=dead",
        "/audit",
        "/audit?subject=x",
        "/s/unknown",
        f"/t/{'0' * 64}",
    ]
    return made + [f"/t/{name}{more}" for name in names for more in ("", "/delete")]


def test_every_page_is_sent_with_the_policy(filled: tuple[TestClient, Services]) -> None:
    client, _ = filled
    for path in pages_of([MEMORY]):
        headers = client.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy == {
            "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self' data:",
            "connect-src": "'self'", "form-action": "'self'", "frame-src": "'self'", "frame-ancestors": "'none'",
            "base-uri": "'none'",
        }, path  # fmt: skip
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "noindex" in headers["x-robots-tag"]
        assert headers["referrer-policy"] == ("no-referrer" if path.startswith("/s/") else "same-origin")
        assert headers["cross-origin-opener-policy"] != "same-origin", "Perfetto must be able to answer"


def test_pages_hold_no_script_no_style_and_ask_nobody_else(
    filled: tuple[TestClient, Services], hostile: tuple[TestClient, list[str]]
) -> None:
    for client, path in [*((filled[0], path) for path in pages_of([MEMORY, HOST])),
                         *((hostile[0], path) for path in pages_of(hostile[1]))]:  # fmt: skip
        page = Page(client.get(path).text)
        assert page.elements[0][0] == "html"
        for tag, attributes in page.elements:
            assert tag not in ("style", "svg", "img", "base", "object", "embed"), (path, tag)
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (path, tag)
            for name in ("src", "href", "action", "formaction"):
                target = attributes.get(name, "/")
                assert re.match(r"/(?!/)|#|\?|data:,$", target), (path, target)
            if tag == "script":
                assert attributes["src"].startswith("/static/"), path


def test_nothing_hostile_becomes_mark_up(hostile: tuple[TestClient, list[str]]) -> None:
    client, names = hostile
    allowed = {"html", "head", "meta", "title", "link", "body", "a", "header", "p", "nav", "main", "h1", "h2", "div",
               "ul", "li", "span", "bdi", "time", "iframe", "section", "dl", "dt", "dd", "code", "form", "input",
               "button", "label", "select", "option", "datalist", "table", "caption", "thead", "tbody", "tr", "th",
               "td", "details", "summary", "pre", "footer", "script", "noscript", "b", "fieldset", "template",
               "progress"}  # fmt: skip
    for path in pages_of(names):
        text = client.get(path).text
        page = Page(text)
        assert {tag for tag, _ in page.elements} <= allowed, path
        assert not any("autofocus" in attributes and tag != "input" for tag, attributes in page.elements), path
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
        assert "\x00" not in text
        assert "\x1b" not in text
    listed = client.get("/").text
    assert "&lt;script&gt;document.title=" in listed
    assert "\N{MATHEMATICAL LEFT DOUBLE ANGLE BRACKET}U+202E" in listed
    assert "{{ 7 * 7 }}" in listed


def test_pages_can_be_used_without_seeing_or_a_mouse(
    filled: tuple[TestClient, Services], hostile: tuple[TestClient, list[str]]
) -> None:
    for client, path in [*((filled[0], path) for path in pages_of([MEMORY, HOST])),
                         *((hostile[0], path) for path in pages_of(hostile[1][:1]))]:  # fmt: skip
        text = client.get(path).text
        page = Page(text)
        named = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(named) == len(set(named)), path
        assert page.all("html") == [{"lang": "en"}]
        assert len(page.all("h1")) == 1, path
        assert len(page.all("main")) == 1
        skip = next(attributes for tag, attributes in page.elements if tag == "a")
        assert skip == {"class": "skip", "href": "#content"}
        labelled = {label.get("for") for label in page.all("label")}
        for field in [*page.all("input"), *page.all("select")]:
            assert field.get("type") == "hidden" or field["id"] in labelled, (path, field)
        assert len(page.all("table")) == len(page.all("caption")), path
        assert all("scope" in head for head in page.all("th")), path
        for _, attributes in page.elements:
            for name in ("aria-labelledby", "aria-describedby", "for", "list"):
                assert set(attributes.get(name, "").split()) <= set(named), (path, attributes)
        assert all("type" in button for button in page.all("button")), path
        assert not re.search(r"<button[^>]*>\s*</button>", text), path


def test_style_sheets_and_scripts_are_kept_for_good_by_their_content(filled: tuple[TestClient, Services]) -> None:
    client, _ = filled
    page = Page(client.get(f"/t/{MEMORY}").text)
    paths = [link["href"] for link in page.all("link") if link["rel"] == "stylesheet"]
    paths += [script["src"] for script in page.all("script")]
    assert len(paths) == 4
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"].split(";")[0] == (
            "text/css" if path.endswith("css") else "text/javascript"
        )
        digest = hashlib.sha256(answer.content).hexdigest()
        assert path.rpartition("-")[2].partition(".")[0] == digest[:16]
    other = paths[0].replace(".css", "0.css")
    for path in (other, "/static/report.css", "/static/..%2freport.css", "/static/%2e%2e/base.html", "/static/"):
        assert client.get(path).status_code == 404, path


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(0, "just now"), (44, "just now"), (50, "1 min ago"), (59 * 60, "59 min ago"), (3600, "1 h ago"),
     (47 * 3600, "47 h ago"), (3 * 86400, "3 days ago"), (90 * 86400, "3 months ago"), (800 * 86400, "2 years ago"),
     (-86400 * 30, "in 30 days"), (-10, "just now")],
)  # fmt: skip
def test_ages(seconds: int, age: str) -> None:
    now = 1_795_996_800_000  # 2026-11-30T00:00:00Z
    told = moment(now - seconds * 1000, now)
    assert told.age == age


def test_a_time_is_exact_beside_its_age() -> None:
    told = moment(1_795_996_800_000 + 61_500, 1_795_996_800_000)
    assert told.iso == "2026-11-30T00:01:01Z"
    assert told.full == "2026-11-30 00:01:01 UTC"
    assert moment(10**17, 0).iso == "9999-12-31T23:59:59Z"
    assert moment(-5, 10 * MINUTE_MS).iso == "1970-01-01T00:00:00Z"


def test_every_sentence_is_used_and_every_sentence_that_is_used_exists() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("templates/server", "traceanalyzer/server/pages")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".html", ".py") and path.name != "words.py"
    )
    asked = set(re.findall(r'\b(?:t|text|_given)\(\s*"([^"{}]+)"', sources))
    assert asked <= set(words.TEXT)
    computed = {
        "state": ["queued", "running", "analysed", "failed", "done", "again", "dead"],
        "quality": ["clean", "info", "warning", "error"],
        "reason": ["upload", "version", "manual"],
        "filter": ["text", "model", "engine", "environment", "gpu", "hour", "day", "week", "month"],
        "share": ["day", "week", "month", "quarter", "never"],
        "upload": ["model", "engine", "environment", "host", "revision", "recording", "weight_s"],
        "audit.who": ["-", "local", "retention", "command line"],
        "audit.did": [
            "upload",
            "view",
            "open",
            "download",
            "delete",
            "share",
            "revoke",
            "pin",
            "unpin",
            "analyse",
            "login",
        ],
        "audit.did.token": ["create", "revoke"],
        "jobs.show": ["all", "dead", "failed", "running", "queued", "done"],
    }
    unused = {
        key for key in words.TEXT
        if f'"{key}"' not in sources
        and (family := key.rpartition("."))[2] not in computed.get(family[0], ())
    }  # fmt: skip
    assert unused == set()


def test_the_scripts_ask_the_page_only_for_words_it_has() -> None:
    upload = (ROOT / "templates/server/upload.html").read_text(encoding="utf-8")
    script = (ROOT / "templates/server/static/server.js").read_text(encoding="utf-8")
    given = set(re.findall(r"data-([a-z]+)=", upload))
    assert set(re.findall(r"\bwords\.([a-z]+)", script)) <= given
    trace = (ROOT / "templates/server/trace.html").read_text(encoding="utf-8")
    relay = (ROOT / "templates/server/static/perfetto.js").read_text(encoding="utf-8")
    told = set(re.findall(r'say\("([a-z]+)"\)|new Error\("([a-z]+)"\)', relay))
    assert {name for pair in told for name in pair if name} <= set(re.findall(r"data-([a-z]+)=", trace))


def test_the_pages_say_nothing_of_their_own() -> None:
    """Words stand in the catalogue, so templates hold none outside of mark-up and expressions."""
    for path in sorted((ROOT / "templates/server").glob("*.html")):
        text = re.sub(r"\{[#%{].*?[#%}]\}", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        said = set(re.findall(r"[A-Za-z]{3,}", re.sub(r"<[^<>]*>|&#?\w+;", " ", text)))
        assert said <= {"traceanalyzer", "token"}, path.name


def test_the_policy_is_the_one_that_is_sent() -> None:
    assert "unsafe" not in rendering.POLICY
    assert "*" not in rendering.POLICY
