"""Print the JSON schema of the report document: `python docs/schema.py > docs/report.schema.json`."""

from __future__ import annotations

import json
import sys

from traceanalyzer.report.document import SCHEMA_VERSION, Report


def schema() -> str:
    """The schema as text, in the order in which the document is declared."""
    body = Report.model_json_schema(mode="serialization")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"traceanalyzer report, schema version {SCHEMA_VERSION}",
    }
    return json.dumps({**head, **{key: value for key, value in body.items() if key not in head}}, indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema())
