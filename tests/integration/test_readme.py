"""README's program and commands run, and print the output in README; the facts of README, and of the page of commands
and settings, match the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from integration.documents import ROOT, Terminal, blocks, run_page

README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()
PROGRAM_LINES = 15
README_LINES = 110
"""A screen and a half: a reader who wants more follows a link."""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_word_count_prints_what_the_readme_says(tmp_path: Path) -> None:
    project = tmp_path / "words"
    project.mkdir()
    opening, _, rest = README.partition("## A complete program")  # `make` in the opening installs software
    assert [block.language for block in blocks(opening)] == ["sh"]
    run_page(rest, Terminal(folder=project), "README.md")


def test_the_program_is_short() -> None:
    program = next(block for block in blocks(README) if block.language == "python")
    assert len(program.text.splitlines()) <= PROGRAM_LINES


def test_the_readme_opens_with_a_sentence_and_the_two_commands() -> None:
    opening = README.partition("## ")[0]
    assert re.search(r"^make demo\b", opening, re.MULTILINE)
    assert re.search(r"^make test\b", opening, re.MULTILINE)
    assert len(README.splitlines()) <= README_LINES


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"[`\n]make ([a-z-]+)", README + (ROOT / "docs" / "how-it-works.md").read_text()))
    assert {"demo", "test"} <= named <= targets


def test_every_verb_of_the_table_exists_and_every_verb_is_in_the_table() -> None:
    from typer.main import get_command

    from drainmark.orchestration.cli.main import command_line

    commands: Any = get_command(command_line())
    verbs = {name for name, verb in commands.commands.items() if not verb.hidden}
    below = {name for verb in commands.commands.values() for name in getattr(verb, "commands", ())}
    table = COMMANDS.partition("## On the command line")[2].partition("\nExit codes")[0]
    firsts = " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    named = {code.split()[0] for code in re.findall("`(.*?)`", firsts)}
    assert named - (below - verbs) == verbs


def test_the_defaults_that_are_named_are_those_of_the_settings() -> None:
    from drainmark.jobs.graph.annotations import MAX_CONSECUTIVE_RESET_ATTEMPTS, REWIND_HORIZON
    from drainmark.resources.settings import Settings

    fields = Settings.model_fields
    table = COMMANDS.partition("## Settings")[2].partition("## ")[0]
    keys = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert set(keys) <= fields.keys()
    sizes = (fields["max_group_triggers"].default, fields["max_group_bytes"].default // 2**20)
    assert f"| {sizes[0]}, {sizes[1]} MiB |" in table
    assert f"| {fields['lease_seconds'].default:g} |" in table
    assert f"`max_consecutive_reset_attempts` ({MAX_CONSECUTIVE_RESET_ATTEMPTS})" in COMMANDS
    horizon = f"{REWIND_HORIZON:,}".replace(",", " ")
    assert f"{horizon} ids" in COMMANDS
    assert f"{horizon} states" in README
