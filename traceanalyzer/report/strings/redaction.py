"""Texts about what was taken out of a trace before it was shared."""

from __future__ import annotations

from collections.abc import Mapping

REDACTION: Mapping[str, str] = {
    "redaction.default": "Redacted before it was shared: {counts}.",
    "redaction.strict": "Redacted strictly before it was shared: {counts}.",
    "redaction.default_some": "{files} of {total} files were redacted before they were shared: {counts}.",
    "redaction.strict_some": "{files} of {total} files were redacted strictly before they were shared: {counts}.",
    "redaction.none": "Shared without redaction: it may name hosts, users and paths.",
    "redaction.nothing": "nothing had to go",
}

REDACTED: Mapping[str, tuple[str, str]] = {
    "hosts": ("host name", "host names"),
    "users": ("user name", "user names"),
    "paths": ("path", "paths"),
    "credentials": ("credential", "credentials"),
    "emails": ("e-mail address", "e-mail addresses"),
    "addresses": ("network address", "network addresses"),
    "annotations": ("annotation", "annotations"),
    "inputs": ("input", "inputs"),
    "texts": ("text", "texts"),
    "names": ("name of a process, thread or function", "names of processes, threads and functions"),
    "metadata": ("metadata field", "metadata fields"),
}
"""What redaction counts, for one and for several."""
