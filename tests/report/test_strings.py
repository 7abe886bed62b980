"""The catalogue holds every code of the product and every text of the renderings, and nothing else."""

from __future__ import annotations

import ast
import re
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from traceanalyzer import analyze, read_trace
from traceanalyzer.analysis.cost import Price
from traceanalyzer.analysis.ledger import GROUPS
from traceanalyzer.analysis.phases import ORDER
from traceanalyzer.analysis.pipeline import AnalysisOptions
from traceanalyzer.report import document, rows, strings
from traceanalyzer.report.strings import labels, page
from traceanalyzer.trace import notes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "traceanalyzer"
TEMPLATES = sorted((ROOT / "templates").glob("*.html"))


def trees(*folders: str) -> Iterator[ast.Module]:
    for folder in folders:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def constants(node: ast.AST) -> set[str]:
    return {item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)}


def codes_of_notes() -> set[str]:
    """The first argument of every `Note(...)`, where it is written out, and every code of the reader."""
    found = set(notes.SEVERITY)
    for tree in trees("trace", "analysis", "catalog"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note" and node.args:
                found |= constants(node.args[0])
    return found


def codes_of_assumptions() -> set[str]:
    """Every string in a statement of analysis that fills `assumptions`: the keyword, or a variable of that name."""
    found: set[str] = set()
    for tree in trees("analysis"):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "assumptions":
                found |= yielded(node.value)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == "assumptions" for target in targets):
                    found |= yielded(node.value)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and "assumptions" in names(node.func)
            ):
                found |= set().union(*(yielded(argument) for argument in node.args))
    return found


def names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def yielded(node: ast.AST) -> set[str]:
    """The strings that an expression can give: conditions and what is asked of a table do not count."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.IfExp):
        return yielded(node.body) | yielded(node.orelse)
    if isinstance(node, ast.Compare | ast.Subscript | ast.comprehension):
        return set()
    return set().union(*(yielded(child) for child in ast.iter_child_nodes(node)))


def codes_of_what_does_not_help() -> set[str]:
    """The keys of the one table of checks in the verdict."""
    tree = ast.parse((PACKAGE / "analysis" / "verdict.py").read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_ruled_out")
    (table,) = (node for node in ast.walk(function) if isinstance(node, ast.Dict))
    return {key.value for key in table.keys if isinstance(key, ast.Constant)}


def test_every_note_has_a_sentence_and_every_sentence_a_note() -> None:
    assert len(codes_of_notes()) > 15
    assert codes_of_notes() == set(strings.QUALITY)


def test_every_assumption_has_a_sentence_and_every_sentence_an_assumption() -> None:
    assert len(codes_of_assumptions()) > 10
    assert codes_of_assumptions() == set(strings.ASSUMPTIONS)


def test_what_is_ruled_out_has_a_sentence_and_every_sentence_is_used() -> None:
    assert codes_of_what_does_not_help() == set(strings.RULED_OUT)


def test_the_reports_of_the_samples_hold_sentences_and_no_codes() -> None:
    """What the scan above could miss."""
    options = AnalysisOptions(peaks_tflops={"fp32": 1.0}, bandwidth_gbs=50.0, price=Price(2.5, "EUR"))
    for sample in sorted((ROOT / "samples").glob("*.json.gz")):
        report = analyze([read_trace(sample)], options)
        assert report.decode_floor
        assert report.prefill_ideal
        assert report.cost
        said = report.decode_floor.assumptions + report.prefill_ideal.assumptions + report.cost.assumptions
        assert len(said) > 5
        assert set(said) <= set(strings.ASSUMPTIONS.values())
        known = [*strings.RULED_OUT.values(), *strings.RULED_OUT_BY.values()]
        patterns = [re.sub(r"\\\{.*?\\\}", ".+", re.escape(sentence)) for sentence in known]
        assert all(any(re.fullmatch(each, said) for each in patterns) for said in report.verdict.ruled_out)


@pytest.mark.parametrize("code", sorted(strings.QUALITY))
@pytest.mark.parametrize("count", [1, 1234])
def test_quality_sentences_are_whole(code: str, count: int) -> None:
    sentence = strings.quality_message(code, count, "4.20")
    assert sentence.endswith(".")
    assert not re.search(r"[{}]", sentence)
    assert sentence[0].isupper() or sentence[0].isdigit()
    assert "1 events" not in sentence
    assert "1,234 event " not in sentence


def test_an_unknown_code_does_not_fail_a_run() -> None:
    assert strings.quality_message("never_heard_of", 1200, "x<y") == "never heard of: x<y (1,200)"
    assert strings.assumption("never_heard_of") == strings.ruled_out("never_heard_of", "decode") == "never heard of"
    assert strings.bucket_label("idle_moonlight") == "idle moonlight"


def test_the_ledger_has_its_five_groups_and_seventeen_buckets() -> None:
    groups = {"idle": 10, "moving": 2, "busy_no_tensor_core": 1, "tensor_core_waiting": 3, "tensor_core_useful": 1}
    assert list(strings.GROUPS) == list(groups)
    assert Counter(GROUPS.values()) == groups
    assert set(strings.BUCKETS) == set(GROUPS)
    drawn = [GROUPS[bucket] for bucket in strings.BUCKETS]
    assert drawn == sorted(drawn, key=list(groups).index)


def test_every_word_of_the_document_has_a_label() -> None:
    assert set(labels.PHASES) == set(rows.PHASES)
    assert rows.PHASES == ORDER
    assert set(labels.BOUNDS) >= set(typing.get_args(document.Bound)) | set(typing.get_args(document.KernelBound))
    assert set(labels.WORKLOADS) == set(typing.get_args(document.Workload))
    assert all(f"verdict.bound.{bound}" in page.TEXT for bound in typing.get_args(document.Bound))


def test_the_headline_names_the_figures_it_rests_on_and_leaves_out_what_is_not_known() -> None:
    facts = strings.HeadlineFacts(phase="decode", bandwidth_share=0.374, compute_share=0.0021, step_us=20_100.0,
                                  floor_ratio=2.68)  # fmt: skip
    assert strings.headline("memory", facts) == (
        "Decode is bound by memory bandwidth: it uses 37 % of the memory bandwidth and 0.2 % of the compute peak. "
        "A step takes 20.1 ms from start to start, 2.7 \u00d7 its floor."
    )
    whole = replace(facts, step_bytes=16.1e9, sequences=1.0, gpu_util=0.99)
    assert strings.headline("memory", whole) == (
        "Decode is bound by memory: each step reads 16.1 GB of weights and KV cache for 1 sequence, 7.50 ms at full "
        "bandwidth, 20.1 ms as measured. The GPU is busy 99 % of the time, yet decode uses 37 % of its memory "
        "bandwidth and 0.2 % of its compute peak."
    )
    cut = strings.HeadlineFacts(phase="decode", idle_share=0.95, whole_steps=0)
    assert strings.headline("host", cut).startswith("No whole decode step was recorded; from what was: decode is bound")
    for bound in typing.get_args(document.Bound):
        bare = strings.headline(bound, strings.HeadlineFacts())
        assert "unknown" not in bare
        assert bare.endswith(".")
        assert ":" not in bare
    training = strings.headline("memory", strings.HeadlineFacts(workload="training", gpu_util=0.5))
    assert training.startswith("This is a training run, not generation")
    on_cpu = strings.HeadlineFacts(phase="decode", idle_share=0.33, no_tensor_core_share=0.67, on_cpu=True)
    assert strings.headline("unknown", on_cpu) == (
        "What binds decode cannot be told from this trace: operators run 67 % of its time."
    )


def used_keys() -> set[str]:
    """Every literal key that a template or a module asks the catalogue for."""
    found: set[str] = set()
    for template in TEMPLATES:
        found |= set(re.findall(r"\bt\(\s*\"([\w.]+)\"", template.read_text(encoding="utf-8")))
    for tree in trees("report"):
        found |= {value for value in constants(tree) if value in page.TEXT}
    return found


def test_every_text_asked_for_is_in_the_catalogue() -> None:
    asked = {
        key
        for template in TEMPLATES
        for key in re.findall(r"\bt\(\s*\"([\w.]+)\"", template.read_text(encoding="utf-8"))
    }
    assert asked
    assert asked <= set(page.TEXT)


def test_no_text_of_the_catalogue_is_dead() -> None:
    """Keys put together from parts are named by their first part in the code."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "report").rglob("*.py")).replace("'", '"')
    code += "\n".join(path.read_text(encoding="utf-8") for path in TEMPLATES)
    for key in page.TEXT:
        section, _, last = key.rpartition(".")
        whole = f'"{key}"' in code
        pieced = f'f"{section}.{{' in code and f'"{last}"' in code
        special = key.startswith("verdict.bound.") or any(
            key.endswith(suffix) and f'"{key.removesuffix(suffix)}"' in code for suffix in ("_note", "_one", "_p99")
        )
        assert whole or pieced or special, key


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_hold_no_words(template: Path) -> None:
    """What a reader sees comes from the catalogue: what is left of a template without its mark-up is punctuation."""
    bare = template.read_text(encoding="utf-8")
    for pattern in (r"\{#.*?#\}", r"\{%.*?%\}", r"\{\{.*?\}\}", r"<!--.*?-->", r"<[^>]*>", r"&#?\w+;"):
        bare = re.sub(pattern, " ", bare, flags=re.DOTALL)
    assert not re.search(r"[A-Za-z]", bare), bare
