"""The published JSON schema is the document's, and every report is valid under it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from jsonschema import Draft202012Validator

from traceanalyzer import analyze, read_trace

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "docs" / "report.schema.json"


def test_the_published_schema_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "schema.py"))["schema"]()
    assert PUBLISHED.read_text(encoding="utf-8") == made, "run `make samples`"


def test_every_field_of_the_document_is_on_the_page_that_explains_it() -> None:
    page = (ROOT / "docs" / "report-schema.md").read_text(encoding="utf-8")
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    names = set(schema["properties"])
    for definition in schema["$defs"].values():
        names |= set(definition.get("properties", {}))
    missing = sorted(name for name in names if f"`{name}`" not in page)
    assert not missing


def test_a_report_is_valid_and_a_changed_one_is_not() -> None:
    validator = Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="utf-8")))
    report = analyze([read_trace(ROOT / "samples" / "tiny-llama-cpu-batch4.json.gz")])
    document = json.loads(report.to_json())
    validator.validate(document)
    assert not validator.is_valid({**document, "surprise": 1})
    assert not validator.is_valid({**document, "steps_omitted": None})
