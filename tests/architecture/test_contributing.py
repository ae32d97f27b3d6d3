"""The recipes of CONTRIBUTING.md: their files exist, and an added operator or verb is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from architecture.tree import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
RECIPES = {
    found[1]: found[2]
    for found in re.finditer(r"^## How to add an? (\w+)\n(.*?)(?=^## )", TEXT, flags=re.MULTILINE | re.DOTALL)
}
_PATH = re.compile(r"`([\w.-]+/[\w./-]*|[A-Z]+\.md)`")

OPERATOR = """
from drainmark.jobs.operators.row_wise.filter import filter as only
__all__ = ["only"]
"""
FIND_OPERATOR = """
import sys
import drainmark.jobs.operators.{package} as package
package.__path__.append(sys.argv[1])
import drainmark as dm
from drainmark.jobs.operators.catalogue import exports
assert exports()["only"] is dm.only
"""
VERB = '''
def greet() -> None:
    """Say hello."""
    print("hello")
'''
CALL_VERB = """
import sys
import drainmark.orchestration.cli as package
package.__path__.append(sys.argv[1])
from drainmark.orchestration.cli import main
main.VERBS["greet"] = "greeting"
sys.exit(main.invoke(["greet"]))
"""


def python(program: str, *arguments: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_there_is_a_recipe_for_each_thing_of_five_steps() -> None:
    assert list(RECIPES) == ["operator", "format", "sink", "verb"]
    assert {
        thing: len(re.findall(r"^\d\. ", text, flags=re.MULTILINE)) for thing, text in RECIPES.items()
    } == dict.fromkeys(RECIPES, 5)


@pytest.mark.parametrize("thing", RECIPES)
def test_the_files_and_folders_that_it_names_are_there(thing: str) -> None:
    named = _PATH.findall(RECIPES[thing])
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_path_that_is_named_at_all_is_there() -> None:
    assert [name for name in _PATH.findall(TEXT) if not (ROOT / name).exists()] == []


def test_the_number_of_invariants_is_that_of_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Invariants")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\d+\. \*\*", text, flags=re.MULTILINE)) == 16
    assert "sixteen invariants" in TEXT


def test_the_caps_are_those_that_are_tested() -> None:
    from architecture import test_sizes as sizes

    sentence = (
        f"{sizes.CLASS_LINES} lines and {sizes.CLASS_METHODS} methods at most, a function {sizes.BODY_LINES} lines"
    )
    assert sentence in TEXT
    assert f"A folder has {sizes.ROOM_MODULES} modules at most" in TEXT


@pytest.mark.parametrize("package", ["sinks", "sources.files", "row_wise", None])
def test_a_file_of_an_operator_is_in_the_catalogue(tmp_path: Path, package: str | None) -> None:
    (tmp_path / "only.py").write_text(OPERATOR)
    program = FIND_OPERATOR.format(package=package) if package else FIND_OPERATOR.replace(".{package}", "")
    python(program, tmp_path)


def test_a_verb_of_the_table_can_be_called(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(VERB)
    assert python(CALL_VERB, tmp_path) == "hello\n"


def test_the_library_is_whole_before_anybody_has_imported_the_facade() -> None:
    kinds = "from drainmark.jobs.operators.catalogue import kinds; print(*sorted(cls.kind for cls in kinds()))"
    assert python(kinds) == python(f"import drainmark.api; {kinds}")
