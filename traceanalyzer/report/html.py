"""The Report as one HTML page that needs nothing else: no request, no clock, and no script to be read.

The page's policy (CSP) allows the one style sheet and the one script in it by their hashes and nothing more; the script
sorts, filters, copies and unfolds, and holds nothing of the report. Every text is escaped without the template's doing
(`templating`), so a hostile name cannot become mark-up.
The document itself is embedded as JSON and can be read back. The same report gives the same bytes.

What could be wrong: the policy of a page cannot stop a reader's browser extensions; and a page edited by hand may hold
a document that was never analysed, for nothing is signed.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json

from jinja2 import Environment
from markupsafe import Markup
from pydantic import ValidationError

from traceanalyzer.errors import InputError
from traceanalyzer.report import markdown, strings
from traceanalyzer.report.document import SCHEMA_VERSION, Report, content_id
from traceanalyzer.report.format import UNKNOWN
from traceanalyzer.report.rows import slowest_device
from traceanalyzer.report.strings.labels import SEVERITIES
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.templating import asset, environment
from traceanalyzer.report.views import charts
from traceanalyzer.report.views.appendix import appendix_view
from traceanalyzer.report.views.bars import floor_view, ledger_view, limits_command, prefill_view
from traceanalyzer.report.views.batching import batching_view
from traceanalyzer.report.views.beside import beside_view
from traceanalyzer.report.views.closeup import closeup_views, whole_trace
from traceanalyzer.report.views.findings import findings_view
from traceanalyzer.report.views.hta import hta_view
from traceanalyzer.report.views.idle import idle_view
from traceanalyzer.report.views.kernel_table import kernel_view
from traceanalyzer.report.views.phase_table import phase_view
from traceanalyzer.report.views.pieces import device_name
from traceanalyzer.report.views.ranks import ranks_view
from traceanalyzer.report.views.strip import strip_view
from traceanalyzer.report.views.summary import first_screen
from traceanalyzer.report.views.unknown import unknown_view
from traceanalyzer.report.views.what_if import changes_view, memory_view

_LONGEST = {
    "steps": 2000, "kernels": 600, "ledger": 5000, "quality": 200, "closeups": 2, "idle_causes": 40_000, "launches": 16,
    "critical_path": 16, "unknown_work": 50,
}  # fmt: skip
_LONGEST_INTEGER = 20
_ELEMENT = '<script type="application/json" id="traceanalyzer-report">'


def render(report: Report) -> str:
    """The whole page."""
    style, script = asset("report.css"), asset("report.js")
    changes, batching, memory = changes_view(report), batching_view(report), memory_view(report)
    page = _environment().get_template("report.html").render(
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; "
               "form-action 'none'",
        style=Markup(style),  # noqa: S704 our own file
        script=Markup(script),  # noqa: S704 our own file
        element=Markup(_ELEMENT),  # noqa: S704 a constant
        document=Markup(_embedded(report)),  # noqa: S704 JSON without < > &
        report=report,
        first=first_screen(report),
        device=device_name(slowest_device(report)),
        findings=findings_view(report),
        phases=phase_view(report),
        ledger=ledger_view(report),
        idle=idle_view(report),
        strip=strip_view(report),
        closeups=closeup_views(report),
        whole_trace=whole_trace(report),
        roofline=charts.roofline(report),
        floor=floor_view(report),
        prefill=prefill_view(report),
        limits=limits_command(report),
        changes=changes,
        batching=batching,
        memory=memory,
        has_what_if=bool(changes or batching or memory),
        beside=beside_view(report),
        kernels=kernel_view(report),
        unknown_work=unknown_view(report),
        appendix=appendix_view(report),
        hta=hta_view(report),
        ranks=ranks_view(report),
        markdown=markdown.render(report),
    )  # fmt: skip
    return page.rstrip("\n") + "\n"


def from_html(page: str) -> Report:
    """The Report embedded in a page made by `render`.

    Raises:
        InputError: the page holds no report, or one that this version cannot read.
    """
    start = page.find(_ELEMENT)
    end = page.find("</script>", start)
    if start < 0 or end < 0:
        raise InputError("the page holds no traceanalyzer report", "give a page that traceanalyzer made")
    try:
        data = json.loads(page[start + len(_ELEMENT) : end], parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise InputError("the report in the page is damaged", "make the page again from the trace") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        told = version if isinstance(version, int) else UNKNOWN
        raise InputError(f"the report in the page has schema version {told}, this version reads {SCHEMA_VERSION}")
    for section, most in _LONGEST.items():
        if isinstance(data.get(section), list) and len(data[section]) > most:
            raise InputError(f"the report in the page holds more than {most} {section}, which no page made here does")
    if not _untouched(data):
        raise InputError("the report in the page was changed after it was made", "make the page again from the trace")
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        raise InputError("the report in the page does not follow the schema", "make the page again") from error


def _integer(text: str) -> int:
    """A whole number of the document; ValueError for one that no count or size reaches."""
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"{text[:8]}... is too long")
    return int(text)


def _untouched(data: dict[str, object]) -> bool:
    """Whether the document still is what its id was computed from. Other versions' fields do not matter to that."""
    try:
        return data.get("report_id") == content_id(data)
    except (ValueError, RecursionError):  # NaN, or too deep to write
        return False


def _embedded(report: Report) -> str:
    """The document as JSON that is inert inside a script element: ASCII, without < > &."""
    data = json.dumps(report.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _environment() -> Environment:
    made = environment()
    made.globals.update(
        t=text,
        unknown=UNKNOWN,
        definitions=strings.DEFINITIONS,
        method=strings.METHOD,
        reading=strings.READING,
        severities=SEVERITIES,
        shapes=charts.KEY_PATHS,
    )
    return made


def _digest(content: str) -> str:
    """What the page's policy knows an inline element by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
