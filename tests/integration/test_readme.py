"""README's program and commands are executed, and print what README says; its facts are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROGRAM_LINES = 15


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a console block and the output that follows it."""

    command: str
    output: str


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"README has {len(found)} blocks of {language}"
    return str(found[0])


def steps() -> Iterator[Step]:
    for part in re.split(r"^\$ ", block("console"), flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Step(command, output)


def normal(output: str) -> str:
    """Return an output without what differs from run to run: seconds, empty lines, blanks at the end of a line."""
    lines = (line.rstrip() for line in re.sub(r"\d+\.\d s\b", "N s", output).splitlines())
    return "\n".join(line for line in lines if line)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_word_count_prints_what_the_readme_says(tmp_path: Path) -> None:
    (tmp_path / "word_count.py").write_text(block("python"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAINMARK_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONIOENCODING"] = "utf-8"
    for step in steps():
        shell = ["bash", "-c", step.command]
        found = subprocess.run(
            shell, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        assert found.returncode == 0, f"$ {step.command}\n{found.stdout}{found.stderr}"
        assert normal(found.stdout) == normal(step.output), step.command


def test_the_program_has_fifteen_lines() -> None:
    assert len(block("python").splitlines()) == PROGRAM_LINES


def test_the_readme_opens_with_a_sentence_and_the_two_commands() -> None:
    opening = README.partition("## ")[0]
    assert re.search(r"^make demo\b", opening, re.MULTILINE)
    assert re.search(r"^make test\b", opening, re.MULTILINE)
    assert len(README.splitlines()) < 200


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"[`\n]make ([a-z-]+)", README))
    assert {"demo", "test"} <= named <= targets


def test_every_verb_of_the_readme_exists_and_every_verb_is_in_the_readme() -> None:
    from orchestration.cli.main import app

    verbs = {command.name for command in app.registered_commands if not command.hidden}
    table = README.partition("## On the command line")[2].partition("\nExit codes")[0]
    firsts = " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    named = {code.split()[0] for code in re.findall("`(.*?)`", firsts)}
    assert named == verbs


def test_the_defaults_in_the_readme_are_those_of_the_settings() -> None:
    from jobs.graph.annotations import MAX_CONSECUTIVE_RESET_ATTEMPTS, REWIND_HORIZON
    from resources.settings import Settings

    fields = Settings.model_fields
    table = README.partition("## Settings")[2].partition("## ")[0]
    keys = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert set(keys) <= fields.keys()
    sizes = (fields["max_group_triggers"].default, fields["max_group_bytes"].default // 2**20)
    assert f"| {sizes[0]}, {sizes[1]} MiB |" in table
    assert f"| {fields['lease_seconds'].default:g} |" in table
    assert f"`max_consecutive_reset_attempts` ({MAX_CONSECUTIVE_RESET_ATTEMPTS})" in README
    assert f"{REWIND_HORIZON:,} ids".replace(",", " ") in README
