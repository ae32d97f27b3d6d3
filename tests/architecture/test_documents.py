"""Each invariant of ARCHITECTURE.md names an existing test; each file and folder that a page names exists."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
from pathlib import Path

import pytest
from architecture.tree import PACKAGES, ROOT, relative, text_files
from followed import words_of

from drainmark.orchestration.cli.main import VERBS

_NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_invariant_names_a_test_that_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    invariants = re.split(r"^(?=\d+\. \*\*)", text.partition("## Invariants")[2].partition("\n## ")[0], flags=re.M)[1:]
    assert len(invariants) >= 15
    defined = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), flags=re.M)
    }
    for invariant in invariants:
        named = _NAMED.findall(invariant)
        assert named, f"no test is named in: {invariant.splitlines()[0]}"
        assert set(named) <= defined, invariant.splitlines()[0]


_FOLDERS = ("drainmark", "sql", "tests", "docs", *PACKAGES)
_PATH = re.compile(rf"`((?:{'|'.join(_FOLDERS)})/[\w./-]*)(?:::\w+)?`")
_MODULE = re.compile(rf"\bdrainmark(?:\.(?:{'|'.join(PACKAGES)}))(?:\.\w+)+")
_OUTSIDE = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.[a-z_]+)+(?!\w)")
_IN_DAGSTER = set(re.findall(r'"(drainmark/\w+)"', (ROOT / "orchestration/dagster_assets/metadata.py").read_text()))
_IN_DAGSTER |= set(re.findall(r'"(drainmark/\w+)"', (ROOT / "orchestration/dagster_assets/verb_events.py").read_text()))
_OTHERS = {"tests/test_app.py", *_IN_DAGSTER}
"""Names that are no files of the repository: a file of a reader's project, tags and metadata in Dagster."""
_ENDINGS = ("py", "md", "toml", "yaml")


_OTHER_PAGE = re.compile(r"(?<![\w.])[\w-]+\.md\b|\u00a7|\bissue [A-Z]\b")
"""The name of a page, a section sign, or the citation of an issue."""
_NOT_OURS = {"gone.md", "bad_data.md", "SOURCE.md"}
"""A broken link of a test, and pages beside data that others published."""


def _pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md", "*.yaml"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize("page", _pages(), ids=relative)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    absent = [name for name in _PATH.findall(text) if name not in _OTHERS and not (ROOT / name).exists()]
    assert absent == []
    for name in _MODULE.findall(text):
        module, _, member = name.rpartition(".")
        place = ROOT.joinpath(*name.split("."))
        is_module = place.is_dir() or place.with_suffix(".py").is_file()
        assert is_module or hasattr(importlib.import_module(module), member), name


def test_no_file_cites_a_page_that_is_not_in_the_repository() -> None:
    here = {page.name for page in _pages()} | _NOT_OURS
    found = {(relative(path), name) for path in text_files() for name in _OTHER_PAGE.findall(path.read_text())}
    assert sorted((path, name) for path, name in found if name not in here) == []


@pytest.mark.parametrize("page", [page for page in _pages() if page.name != "CHANGELOG.md"], ids=relative)
def test_no_page_imports_a_folder_of_the_repository_by_its_own_name(page: Path) -> None:
    named = [name for name in _OUTSIDE.findall(page.read_text("utf-8")) if name.rpartition(".")[2] not in _ENDINGS]
    assert named == []


_CAPITALS = re.compile(r"\b[A-Z]{3,}(?:_[A-Z]+)*\b")


@pytest.mark.parametrize("page", _pages(), ids=relative)
def test_a_page_names_errors_by_their_ids(page: Path) -> None:
    ids = re.findall(r"^\| `([A-Z_]+)` ", (ROOT / "docs/reference/errors.md").read_text(), flags=re.M)
    assert "SOURCE_REWOUND" in ids
    by_letters = {name.replace("_", ""): name for name in ids if "_" in name}
    named = set(_CAPITALS.findall(page.read_text("utf-8")))
    assert {
        name: by_letters[name.replace("_", "")] for name in named - set(ids) if name.replace("_", "") in by_letters
    } == {}


_COMING_FROM = ROOT / "docs" / "how-to" / "coming-from.md"
_NAME_OF_OURS = re.compile(r"\bdm\.([A-Za-z_]+(?:\.[A-Za-z_]+)*)")
_ARGUMENT = re.compile(r"\b([a-z_]+)=")
_METHOD = re.compile(r"\bcontext\.([a-z_]+)\(")


def of_ours() -> list[str]:
    """Return what stands in the column of ours of each table of the page, and its sentences."""
    lines = _COMING_FROM.read_text("utf-8").splitlines()
    rows = [re.split(r"(?<!\\)\|", line) for line in lines if line.startswith("| ") and line != "| there | here |"]
    assert all(len(row) == 4 for row in rows)
    return [row[2] for row in rows] + [line for line in lines if not line.startswith("|")]


def test_the_page_for_those_who_come_from_elsewhere_names_what_there_is() -> None:
    import drainmark as dm
    from drainmark.jobs.runtime.hosting.region_context import RegionContext

    known = {"metadata"}
    for name in dir(dm):
        found = getattr(dm, name)
        if callable(found):
            known |= inspect.signature(found).parameters.keys()
    for text in of_ours():
        for path in _NAME_OF_OURS.findall(text):
            found = dm
            for name in path.split("."):
                found = getattr(found, name)
        assert {name for name in _ARGUMENT.findall(text) if not name.startswith("_")} <= known, text
        assert all(hasattr(RegionContext, name) for name in _METHOD.findall(text)), text
        assert set(re.findall(r"`drainmark ([a-z]+)", text)) <= VERBS.keys(), text
        list(words_of(text))  # which refuses options that a verb does not have


def test_it_names_all_callbacks_and_states() -> None:
    import drainmark as dm
    from drainmark.jobs.protocol.transitions import State

    said = " ".join(of_ours())
    callbacks = {name for name in vars(dm.StateHandler) if not name.startswith("_")}
    assert {name for name in callbacks if f"`{name}`" not in said} == set()
    assert {state for state in State if state.value not in said} == set()
