"""Each invariant of ARCHITECTURE.md names an existing test; each file and folder that a page names exists."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest
from architecture.tree import PACKAGES, ROOT, relative, text_files

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
