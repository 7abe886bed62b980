"""A secret in any string of a trace, however it is spelt, never survives; JSON stays valid and numbers equal."""

from __future__ import annotations

import gzip
import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from traceanalyzer.analysis.steps.labels import parse
from traceanalyzer.share.redact import redact_file
from traceanalyzer.share.redact.annotations import annotation

SECRETS = (
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "sk-proj-4f9aB2cD7eF1gH3iJ5kL",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "glpat-x8sK2mQ9vTz4LpRw7YbN",
    "/home/mallory9/project/serve.py",
    "mallory9@example.org",
    "C:\\Users\\mallory9\\serve.py",
)
CATEGORIES = (
    "kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "python_function", "user_annotation", "gpu_user_annotation",
    "cpu_instant_event", "ac2g", "Trace", "Operator", "unheard_of", None,
)  # fmt: skip
KEYS = (
    "Concrete Inputs",
    "Input type",
    "Call stack",
    "kernel_file",
    "name",
    "labels",
    "note",
    "cat",
    "args",
    "External id",
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
number = st.one_of(st.integers(-(10**20), 10**20), st.decimals(allow_nan=False, allow_infinity=False, places=4)).map(
    str
)


def spelt(draw: st.DrawFn, value: str) -> str:
    """A JSON string with some of its characters as escapes."""
    out = []
    for char in value:
        code = ord(char)
        if draw(st.booleans()) and code < 0x10000:
            out.append(f"\\u{code:04{draw(st.sampled_from('xX'))}}")
        elif char == "/" and draw(st.booleans()):
            out.append("\\/")
        else:
            out.append(json.dumps(char, ensure_ascii=False)[1:-1])
    return f'"{"".join(out)}"'


@st.composite
def secretive(draw: st.DrawFn, secret: str) -> str:
    before, after = (
        draw(st.sampled_from(("", " ", "a ", "=", "x/../", '"', "(", "at "))),
        draw(st.sampled_from(("", " ", ")", " b", ","))),
    )
    return spelt(draw, before + secret + after)


@st.composite
def values(draw: st.DrawFn, secret: str, depth: int = 0) -> str:
    """Any JSON value with the secret in some of its strings."""
    kind = draw(st.sampled_from(("secret", "text", "number", "list", "object", "word")))
    space = draw(st.sampled_from(("", " ", "\n  ")))
    if kind == "secret":
        return draw(secretive(secret))
    if kind == "text":
        return spelt(draw, draw(text))
    if kind == "word":
        return draw(st.sampled_from(("true", "false", "null")))
    if kind == "list" and depth < 3:
        return f"[{space}{f',{space}'.join(draw(st.lists(values(secret, depth + 1), max_size=3)))}]"
    if kind == "object" and depth < 3:
        keys = draw(st.lists(st.one_of(text, st.sampled_from(KEYS), st.just(secret)), max_size=3, unique=True))
        return f"{{{','.join(f'{spelt(draw, key)}{space}: {draw(values(secret, depth + 1))}' for key in keys)}}}"
    return draw(number)


@st.composite
def events(draw: st.DrawFn, secret: str) -> str:
    """An event of any category, with fields in any order."""
    fields = {
        '"ph"': json.dumps(draw(st.sampled_from("XXXXMCis"))),
        '"name"': draw(
            st.one_of(secretive(secret), st.sampled_from(('"aten::mm"', '"process_name"', '"thread_name"')))
        ),
        '"ts"': draw(number),
        '"dur"': draw(number),
        '"pid"': draw(st.one_of(st.just("1"), secretive(secret))),
        '"args"': draw(values(secret)),
        spelt(draw, draw(st.sampled_from((secret, "x", "id")))): draw(values(secret)),
    }
    category = draw(st.sampled_from(CATEGORIES))
    if category:
        fields['"cat"'] = json.dumps(category)
    names = draw(st.permutations(list(fields)))
    if draw(st.booleans()):  # Kineto's order
        first = [name for name in ('"ph"', '"cat"', '"name"') if name in fields]
        names = [*first, *(name for name in names if name not in first)]
    colon = draw(st.sampled_from((":", ": ", " : ")))
    return "{" + ", ".join(f"{name}{colon}{fields[name]}" for name in names) + "}"


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str]:
    secret = draw(st.sampled_from(SECRETS))
    listed = ",\n".join(draw(st.lists(events(secret), min_size=1, max_size=4)))
    beside = ", ".join(
        f"{spelt(draw, key)}: {draw(values(secret))}"
        for key in draw(
            st.lists(
                st.sampled_from((secret, "host_name", "distributedInfo", "deviceProperties", "torch_version", "env",
                                 "traceName", "schemaVersion", "trace_id", "traceanalyzer")),
                unique=True, max_size=4,
            )
        )
    )  # fmt: skip
    parts = [f'"traceEvents": [{listed}]', *([beside] if beside else [])]
    return secret, "{" + ", ".join(draw(st.permutations(parts))) + "}"


def numbers(value: Any) -> list[str]:
    """All numbers of a value, as they are written, in order."""
    if isinstance(value, Decimal):
        return [str(value)]
    if isinstance(value, dict):
        return [number for inner in value.values() for number in numbers(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in numbers(inner)]
    return []


def read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in (key, *texts(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [value] if isinstance(value, str) else []


@settings(max_examples=150, deadline=None)
@given(documents(), st.sampled_from(("default", "strict")))
def test_a_secret_never_survives_and_numbers_do(document: tuple[str, str], level: Any) -> None:
    secret, written = document
    before = read(written)
    with tempfile.TemporaryDirectory() as folder:
        source, target, again = (Path(folder) / name for name in ("in.json", "out.json.gz", "again.json.gz"))
        source.write_text(written, encoding="utf-8")
        redact_file(source, target, level)
        redact_file(target, again, level)
        assert target.read_bytes() == again.read_bytes()
        after = read(gzip.decompress(target.read_bytes()).decode())
    for found in texts(after):
        assert secret not in found
        assert "mallory9" not in found
    assert numbers(after["traceEvents"]) == numbers(before["traceEvents"])


WORDS = (
    "prefill", "decode", "Decoding", "warm_up", "generate", "draft", "tokens", "text", "my", "##", "step", "[", "]",
    "(3)", "bs=2", "tok=3", "ctx=[1, 2]", "DECODE", "EXTEND", "step[", "ta.step[", "prefill[", "ProfilerStep#3",
    "execute_context_1(2)_generation_0(0)", "capture_3_", " ", " ", "é", "x",
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=7).map("".join))
def test_a_redacted_annotation_reads_as_the_same_step(name: str) -> None:
    after = annotation(name, name)
    assert annotation(after, after) == after
    before, now = parse(name), parse(after)
    assert (before is None) == (now is None), after
    if before is not None and now is not None:
        same = [
            (field, repr(getattr(before, field)), repr(getattr(now, field)))
            for field in before.__slots__
            if field != "text"
        ]
        assert all(one == other for _, one, other in same), (after, same)
