"""Every block of docs/ runs in order, in a project of its own, and prints the page's output; no page is stale.

The command line runs in this process, on the Spark session of the test run, except if a command needs a process to
kill, a pipe or a variable. README's block runs in processes of its own (test_readme.py).
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from integration.documents import ROOT, InProcess, Terminal, blocks, run_page

from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.cli.templates import TEMPLATES, Kind
from drainmark.resources.spark.session import SparkEngine

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
NOT_RUN = {
    "tutorial.md": 2,
    "how-to/clouds.md": 1,
    "how-to/cluster.md": 1,
    "how-to/dagster.md": 1,  # a command of a package that is no dependency
    "how-to/deploy.md": 5,
    "how-to/kafka.md": 4,
    "how-to/lineage.md": 1,
    "how-to/monitor.md": 2,
    "how-to/postgres.md": 2,
}
"""The number of blocks of a page that cannot run here; every other page has none."""


def runs_something(page: str) -> bool:
    if page.startswith("reference/"):  # test_examples.py runs their examples
        return False
    return any(block.language in ("python", "console", "sh") and not block.not_run
               for block in blocks((DOCS / page).read_text()))  # fmt: skip


def servers_of(page: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Start the servers that a page presumes; return their addresses as environment variables."""
    if page == "how-to/s3.md":
        request.getfixturevalue("s3_credentials")
        return {"DRAINMARK_S3_ENDPOINT_URL": request.getfixturevalue("s3_server")}
    if page == "how-to/postgres.md":
        return {"DRAINMARK_REGISTRY_URL": request.getfixturevalue("postgres_url")}
    return {}


@pytest.fixture
def in_process(engine: SparkEngine, capfd: pytest.CaptureFixture[str]) -> InProcess:
    """Return a function that runs the command line in this process, on the session of the test run."""
    assert engine.session is not None  # the command line's own engine finds this session

    def call(arguments: list[str]) -> tuple[int, str, str]:
        capfd.readouterr()
        code = invoke(arguments)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.slow  # in the default run, README is the page whose commands run
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if runs_something(page)])
def test_a_page_does_what_it_says(
    page: str,
    in_process: InProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = servers_of(page, request)
    for name, value in servers.items():
        monkeypatch.setenv(name, value)
    run_page((DOCS / page).read_text(), Terminal(tmp_path, in_process, servers), page)


@pytest.mark.parametrize("page", PAGES)
def test_only_these_blocks_cannot_run_here(page: str) -> None:
    marked_so = [block for block in blocks((DOCS / page).read_text()) if block.not_run]
    assert len(marked_so) == NOT_RUN.get(page, 0), [block.line for block in marked_so]


def test_the_tutorial_shows_what_init_writes() -> None:
    program = next(block for block in blocks((DOCS / "tutorial.md").read_text()) if block.file == "app.py")
    assert program.text == TEMPLATES[Kind.WORDS].files["app.py"]


def test_the_lines_for_an_instance_of_ones_own_are_those_that_drainmark_ships() -> None:
    (block,) = (each for each in blocks((DOCS / "how-to/dagster.md").read_text()) if "run_retries" in each.text)
    shipped = yaml.safe_load((ROOT / "orchestration/shipped/dagster.yaml").read_text())
    ours = yaml.safe_load(block.text)
    assert {"run_retries", "concurrency", "run_monitoring"} == ours.keys()
    assert is_part(ours, shipped)


def is_part(part: Any, whole: Any) -> bool:
    if not isinstance(part, dict):
        return bool(part == whole)
    return all(key in whole and is_part(value, whole[key]) for key, value in part.items())


def test_the_reference_is_that_of_the_code() -> None:
    pages = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    assert {path.name for path in (DOCS / "reference").iterdir()} == set(pages)
    stale = [name for name, text in pages.items() if (DOCS / "reference" / name).read_text() != text]
    assert stale == [], "docs/reference is out of date: make docs"


@pytest.mark.parametrize("page", ["../README.md", *PAGES])
def test_every_link_leads_somewhere(page: str) -> None:
    path = DOCS / page
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        assert "://" in target or (path.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_every_page_can_be_found_from_the_index(page: str) -> None:
    assert page == "README.md" or f"({page})" in (DOCS / "README.md").read_text()


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ echo one\n...\ntwo\n```\n",
        "```console\n$ echo one\n```\n",
        "```console\n$ exit 3\n$ echo one\none\n```\n",
        "```console\n$ exit 3\n```\n",
        "```console\n$ exit 3\n$ echo $?\n4\n```\n",
        "```sh\nexit 3\n```\n",
        '```python\nassert "one" == "two"\n```\n',
    ],
)
def test_a_page_that_says_something_else_fails(page: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="page:"):
        run_page(page, Terminal(tmp_path), "page")


def test_a_page_may_leave_out_lines_and_parts_of_lines(tmp_path: Path) -> None:
    written = "`a.txt`:\n\n```text\none two\nthree\nfour\n```\n\n"
    typed = "```console\n$ cat a.txt\none...\n...\nfour\n$ exit 3\n$ echo $?\n3\n```\n"
    run_page(written + typed, Terminal(tmp_path), "page")
