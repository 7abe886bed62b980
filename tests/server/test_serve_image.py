"""What operators copy: the Dockerfile, read line by line as no image can be built here, and the server's manual."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from traceanalyzer.commands.app import app
from traceanalyzer.commands.serve import serve

ROOT = Path(__file__).resolve().parents[2]
MANUAL = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """Name and words of each instruction; comments and line ends within one are gone."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(words[0], words[1]) for line in text.splitlines() if (words := line.split(maxsplit=1))]


def final_stage() -> dict[str, str]:
    last = max(place for place, (name, _) in enumerate(instructions()) if name == "FROM")
    return dict(instructions()[last:])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", MANUAL, re.DOTALL)


def test_every_base_is_pinned_to_a_python_that_we_support() -> None:
    bases = [words.split()[0] for name, words in instructions() if name == "FROM"]
    assert len(bases) == 2 and len(set(bases)) == 1
    version = re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+", bases[0])
    assert version, "a version and a distribution, not `latest`"
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert tuple(map(int, version[1].split("."))) >= tuple(map(int, least.removeprefix(">=").split(".")))


def test_it_runs_as_nobody_in_particular() -> None:
    stage = final_stage()
    user, group = map(int, stage["USER"].split(":"))
    assert user > 0 and group > 0
    made = next(words for name, words in instructions() if name == "RUN" and "useradd" in words)
    assert f"--uid {user} " in made and f"-o {user} -g {group}" in made
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN")
    assert "ADD" not in names and "curl" not in made and "sudo" not in made


def test_what_it_starts_exposes_and_keeps() -> None:
    stage = final_stage()
    assert json.loads(stage["ENTRYPOINT"]) == ["traceanalyzer"]
    name, *words = json.loads(stage["CMD"])
    options = known_options()
    assert name == "serve" and set(words[::2]) <= options
    (volume,) = json.loads(stage["VOLUME"])
    assert f"TRACEANALYZER_FOLDER={volume}" in stage["ENV"]
    port = stage["EXPOSE"]
    assert port == str(next(p.default for p in parameters() if p.name == "port"))
    check = stage["HEALTHCHECK"]
    command = json.loads(check[check.index("[") :])
    assert command[:2] == ["python", "-c"] and f":{port}/api/v1/health" in command[2] and ast.parse(command[2])


def test_the_image_gets_what_a_wheel_is_built_from_and_nothing_else() -> None:
    copied = {
        source
        for name, words in instructions()
        if name == "COPY" and "--from" not in words
        for source in words.split()[:-1]
    }
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    target = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*target["packages"], *target["force-include"], "pyproject.toml", build["project"]["readme"]}
    assert copied == needed | set(build["project"]["license-files"])
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*" and {line[1:] for line in ignored if line.startswith("!")} == copied


def parameters() -> list[typer.core.TyperArgument | typer.core.TyperOption]:
    return list(typer.main.get_command(app).commands["serve"].params)  # type: ignore[attr-defined]


def known_options() -> set[str]:
    return {option for parameter in parameters() for option in parameter.opts if option.startswith("--")}


def test_the_manual_knows_every_option_and_no_other() -> None:
    assert serve.__doc__
    table = MANUAL[MANUAL.index("## Options") : MANUAL.index("## What it keeps")]
    told = set(re.findall(r"^\| .*", table, re.MULTILINE))
    names = {option for row in told for option in re.findall(r"`(--[a-z-]+)", row.split("|")[1])}
    assert names == known_options() - {"--help"}


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_can_be_read(text: str) -> None:
    read = yaml.safe_load(text)
    for container in _containers(read):
        words = container.get("args", [])
        if words and words[0] == "serve":
            assert {word for word in words if word.startswith("--")} <= known_options()


def _containers(read: object) -> list[dict[str, list[str]]]:
    if isinstance(read, dict):
        own = [one for one in read.get("containers", []) if isinstance(one, dict)]
        return own + [found for value in read.values() for found in _containers(value)]
    return [found for value in read for found in _containers(value)] if isinstance(read, list) else []


def test_the_unit_gives_more_time_than_the_grace() -> None:
    (unit,) = blocks("ini")
    grace = next(p.default for p in parameters() if p.name == "grace")
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    kubernetes = re.search(r"terminationGracePeriodSeconds: (\d+)", MANUAL)
    docker = re.search(r"--stop-timeout (\d+)", MANUAL)
    for found in (stop, kubernetes, docker):
        assert found and int(found[1]) >= grace + 15
    started = re.search(r"^ExecStart=\S+ serve (.*)$", unit, re.MULTILINE)
    assert started and {word for word in started[1].split() if word.startswith("--")} <= known_options()
