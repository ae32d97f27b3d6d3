"""The documentation as a site: all pages are in its navigation, all links are checked, nothing loads from outside."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PARTS = ("docs", "jobs/README.md", "deploy", "mkdocs.yml", "resources/settings.py")
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=\"?(?:https?:)?//[^\s\"]+|<link[^>]+href=\"?(?:https?:)?//[^\s\"]+"
)


def named(entries: list[Any]) -> Iterator[str]:
    """Yield the pages of a navigation."""
    for entry in entries:
        for page in entry.values():
            yield from named(page) if isinstance(page, list) else [page]


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    found = set(named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} <= found
    assert all((ROOT / page).is_file() for page in found)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the pages and of the files that they link to."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for name in listed:
        if (ROOT / name).is_file() and (name.startswith(PARTS) or "/" not in name):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def built(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "docs/website.py"], cwd=checkout, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_site_has_every_page_in_its_search_and_fetches_nothing_from_outside(checkout: Path) -> None:
    done = built(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    site = checkout / "build" / "site"
    places = {
        entry["location"].partition("#")[0]
        for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]
    }
    pages = {path.relative_to(site).as_posix().removesuffix("index.html") for path in site.rglob("index.html")}
    assert pages == places
    fetched = [(path.name, found) for path in site.rglob("*.html") for found in FETCHED.findall(path.read_text())]
    assert fetched == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"url\(\W?(?:https?:)?//", styles)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[gone](gone.md)", "[no such part](tutorial.md#gone)"])
def test_a_link_that_leads_nowhere_fails_the_site(checkout: Path, link: str) -> None:
    with (checkout / "docs" / "glossary.md").open("a") as page:
        page.write(f"\n{link}\n")
    done = built(checkout)
    assert done.returncode != 0
    assert "gone" in done.stdout + done.stderr
