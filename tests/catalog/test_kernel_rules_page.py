"""docs/kernel-rules.md: its examples select the rules that it names, and the rule it teaches to write works."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
import yaml

from tests.conftest import ROOT
from traceanalyzer.analysis.kernels import HELPER_ROLES
from traceanalyzer.catalog import kernel_rules
from traceanalyzer.catalog.kernel_rules import Rule, categories, match, rules

PAGE = (ROOT / "docs" / "kernel-rules.md").read_text(encoding="utf-8")


def part(title: str) -> str:
    """The text under one heading."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head and without the marks of code."""
    lines = [line for line in part(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize(("category", "_what", "name", "rule"), rows("Categories"), ids=lambda text: text[:24])
def test_every_example_selects_its_rule(category: str, _what: str, name: str, rule: str) -> None:
    assert (match(name).category, match(name).id) == (category, rule)


def test_every_category_helper_and_field_is_explained() -> None:
    assert [category for category, *_ in rows("Categories")] == list(categories())
    assert {role for role, _ in rows("Roles that mean something")} == HELPER_ROLES
    own = {"pattern": "match"}
    assert {name for name, _ in rows("Fields")} == {own.get(one.name, one.name) for one in fields(Rule)}
    collectives = {rule.role for rule in rules() if rule.category == "comm"}
    assert {role for role in collectives if f"`{role}`" not in part("Roles that mean something")} == set()


def test_the_rule_of_the_page_works_where_the_page_puts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = part("Add a rule in two minutes")
    (written,) = re.findall(r"```yaml\n(.*?)```", steps, re.DOTALL)
    (entry,) = yaml.safe_load(written)
    (name,) = re.findall(r"match\('''(.*?)'''\)", steps)
    (before,) = re.findall(r"that is before `([\w-]+)`", steps)
    assert match(name).id != entry["id"]
    assert set(entry) <= {name for name, _ in rows("Fields")}
    made = kernel_rules._rule(entry, ())
    assert made.pattern.search(name)
    place = [rule.id for rule in rules()].index(before)
    ordered = (*rules()[:place], made, *rules()[place:])
    monkeypatch.setattr(kernel_rules, "rules", lambda: ordered)
    assert (match(name).id, match(entry["example"]).id) == (entry["id"], entry["id"])
    assert [rule.id for rule in ordered if match(rule.example).id != rule.id] == []
