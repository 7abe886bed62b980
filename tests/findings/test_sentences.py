"""Every code a rule can give has a sentence of one line, every sentence a rule, and every placeholder a value."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from traceanalyzer.findings.registry import RULES, WINDOW
from traceanalyzer.report import strings

PACKAGE = Path(__file__).resolve().parents[2] / "traceanalyzer" / "findings"
MAKERS = frozenset({"Fact", "passed", "not_applicable", "error"})
ALL = {**strings.FACTS, **strings.FINDING_ASSUMPTIONS, **strings.RULED_OUT_BY}


def calls() -> Iterator[tuple[str, str, set[str] | None]]:
    """Module, code and names of the values of every fact that the rules make; names are None where not written out."""
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS):
                continue
            for code in (one for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)):
                yield path.name, str(code.value), _names(node)


def _names(node: ast.Call) -> set[str] | None:
    if node.keywords:
        return {keyword.arg or "" for keyword in node.keywords}
    if len(node.args) == 1:
        return set()
    given = node.args[1]
    return {key.value for key in given.keys if isinstance(key, ast.Constant)} if isinstance(given, ast.Dict) else None


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def constants() -> set[str]:
    found: set[str] = set()
    for path in PACKAGE.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found


def test_every_fact_has_a_sentence_with_its_values() -> None:
    seen = list(calls())
    assert len(seen) > 60
    for module, code, names in seen:
        template = (strings.RULED_OUT_BY if module == "excluded.py" else strings.FACTS).get(code)
        assert template is not None, code
        assert names is None or fields(template) <= names, code


def test_every_sentence_is_used() -> None:
    used = constants()
    assert set(ALL) <= used


def test_every_assumption_of_a_rule_has_a_sentence() -> None:
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "proposal":
                named = {n.value for n in ast.walk(node.args[-1]) if isinstance(n, ast.Constant)}
                assert {name for name in named if isinstance(name, str)} <= set(strings.FINDING_ASSUMPTIONS)


def test_every_rule_has_a_title_a_subject_and_an_action() -> None:
    ids = {*(rule.id for rule in RULES), WINDOW}
    assert ids == set(strings.TITLES) == set(strings.SUBJECTS) == set(strings.ACTIONS)


@pytest.mark.parametrize("sentence", [*ALL.values(), *strings.ACTIONS.values()])
def test_sentences_are_one_line_each(sentence: str) -> None:
    assert sentence.endswith(".")
    assert len(sentence) <= 160
    assert "\n" not in sentence


@pytest.mark.parametrize("title", [*strings.TITLES.values(), *strings.SUBJECTS.values()])
def test_titles_are_short_and_no_sentences(title: str) -> None:
    assert title[0].isupper()
    assert not title.endswith(".")
    assert len(title) <= 90


@pytest.mark.parametrize("template", list(strings.FACTS.values()) + list(strings.RULED_OUT_BY.values()))
def test_placeholders_are_filled(template: str) -> None:
    code = next(code for code, text in {**strings.FACTS, **strings.RULED_OUT_BY}.items() if text == template)
    values = {name: 0.123456 if spec else "bf16" for _, name, spec, _ in string.Formatter().parse(template) if name}
    filled = (strings.finding_fact if code in strings.FACTS else strings.ruled_out_by)(code, values)
    assert not re.search(r"[{}]", filled)
    assert "unknown" not in filled


def test_values_are_written_as_people_read_them() -> None:
    values = {"share": 0.234, "ns": 840_000.0}
    assert strings.finding_fact("waits_for_launches", values) == (
        "The GPU waits 840 \N{MICRO SIGN}s per step for launch calls, 23 % of the step."
    )
    assert (
        strings.finding_fact("never_heard_of", {}) == strings.finding_assumption("never_heard_of") == "never heard of"
    )
    assert strings.finding_title("never_heard_of", True) == "never heard of"
    assert strings.finding_action("never_heard_of") is None
