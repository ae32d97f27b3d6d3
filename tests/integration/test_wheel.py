"""A wheel installs everything, as one package, beside a project's own folders of any name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKED = ("drainmark", "jobs", "orchestration", "resources", "sql", *(f"{n}.yaml" for n in ("dagster", "workspace")))
WITH = ("pyproject.toml", "README.md", "LICENSE")
BUILD = "from setuptools import setup; setup()"

APPLICATION = """
from jobs.helpers import loud
from orchestration import NAME
from resources.patterns import PATTERN

import drainmark as dm
from drainmark import F

louder = F.udf(loud, "string")


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern=PATTERN, format="text"))
def lines(scanned):
    return scanned


words = dm.sql("words", inputs=[lines])


@dm.functor
def loud_lines(words):
    return dm.select(words, louder("word").alias("word"))


dm.sink(loud_lines, dm.DeltaAppend(NAME))
"""
PROJECT = {
    "app.py": APPLICATION,
    "drainmark.toml": 'applications = ["app.py"]\n',
    "inbox/a.txt": "to\nbe\n",
    "jobs/__init__.py": "",
    "jobs/helpers.py": "def loud(word):\n    return word.upper()\n",
    "orchestration/__init__.py": 'NAME = "loud_words"\n',
    "resources/patterns.py": 'PATTERN = "*.txt"\n',
    "sql/app/words.sql": "SELECT value AS word, _sequence_id FROM {lines}",
    "errors.py": "",
}
"""An application that imports from folders with the names of the repository's folders."""

LOCATION = """
import sys
sys.path.insert(0, "")
from drainmark.orchestration.definitions import defs
print(*(job.name for job in defs().get_repository_def().get_all_jobs()))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the product's files that git lists; links stay links."""
    folder = tmp_path_factory.mktemp("sources")
    command = ["git", "ls-files", "-z", "--", *PACKED, *WITH]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        target = folder / name
        if (ROOT / name).is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def installed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an installed wheel; its dependencies come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, sources], check=True)
    (wheel,) = folder.glob("drainmark-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def call(installed: Path, cwd: Path, *command: str) -> str:
    """Run Python in a folder, with the installed package before all others; return its output."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRAINMARK_", "PYTEST_", "DAGSTER_"))}
    ended = subprocess.run(
        [sys.executable, *command], cwd=cwd, env={**clean, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def drainmark(installed: Path, cwd: Path, *arguments: str) -> str:
    """Call the program that pip has put beside the package."""
    return call(installed, cwd, str(installed / "bin" / "drainmark"), *arguments)


def test_what_setuptools_packs_is_one_package(sources: Path, tmp_path: Path) -> None:
    """It packs the files of a wheel without a wheel: that needs a newer setuptools than some have, from the network."""
    settings = re.sub(r"^license = .*$", "", (sources / "pyproject.toml").read_text(), flags=re.MULTILINE)
    for each in sources.iterdir():
        if each.name != "pyproject.toml":
            (tmp_path / each.name).symlink_to(each)
    (tmp_path / "pyproject.toml").write_text(settings)
    command = [sys.executable, "-c", BUILD, "-q", "build", "--build-base", "base", "--build-lib", "packed"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    packed = tmp_path / "packed"
    assert [path.name for path in packed.iterdir()] == ["drainmark"]
    found = {path.relative_to(packed).as_posix() for path in packed.rglob("*") if path.is_file()}
    listed = {path.relative_to(sources).as_posix() for path in sources.rglob("*") if path.is_file()}
    inside = {name if name.startswith("drainmark/") else f"drainmark/{name}" for name in listed if "/" in name}
    assert inside - found == {"drainmark/jobs/README.md"}
    assert found - inside == set()


def test_the_source_distribution_has_the_package_and_its_licence_and_no_tests(sources: Path, tmp_path: Path) -> None:
    settings = re.sub(r"^license = .*$", "", (sources / "pyproject.toml").read_text(), flags=re.MULTILINE)
    for each in sources.iterdir():
        if each.name != "pyproject.toml":
            (tmp_path / each.name).symlink_to(each)
    for strange in ("tests/unit/test_strange.py", "tests/harness.py", "data/rows.csv", "docs/tutorial.md"):
        (tmp_path / strange).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / strange).touch()
    (tmp_path / "pyproject.toml").write_text(settings)
    command = [sys.executable, "-c", BUILD, "-q", "sdist", "--dist-dir", "made"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (made,) = (tmp_path / "made").iterdir()
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()} - {""}
    assert {name.partition("/")[0] for name in names} <= {
        *("drainmark", "drainmark.egg-info", "LICENSE", "README.md", "PKG-INFO", "pyproject.toml", "setup.cfg"),
    }
    assert {"LICENSE", "drainmark/py.typed", "drainmark/orchestration/shipped/dagster.yaml"} <= names


TYPED = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="item string, amount bigint"))
def sales(scanned: object) -> object:
    return scanned


totals = dm.aggregate(sales, keys=["item"], values={"amount": dm.sum("amount")}, name="totals")
dm.sink(totals, dm.DeltaUpsert("item_totals", keys=["item"]))


def tables_of(region: str) -> list[str]:
    return [str(found["table"]) for found in dm.tables(region)]


print(dm.read("app", "item_totals", at=1))
"""
MISTYPED = """
import drainmark as dm

dm.tables(3)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestInstalled:
    """Tests of the wheel itself, built as `pip install` builds it."""

    def test_a_new_project_runs_on_it(self, installed: Path, tmp_path: Path) -> None:
        where = call(installed, tmp_path, "-c", "import drainmark; print(*drainmark.__path__)")
        assert where.strip() == str(installed / "drainmark")
        words = tmp_path / "words"
        words.mkdir()
        drainmark(installed, words, "init")
        drainmark(installed, words, "run")
        rows = json.loads(drainmark(installed, words, "show", "word_counts", "--json"))
        assert {row["word"]: row["count"] for row in rows} == {"to": 2, "be": 2, "or": 1, "not": 1}

    def test_dagster_s_files_are_where_dev_looks_for_them(self, installed: Path) -> None:
        shipped = installed / "drainmark" / "orchestration" / "shipped"
        for name in ("dagster.yaml", "workspace.yaml"):
            assert (shipped / name).read_bytes() == (ROOT / name).read_bytes()

    def test_nothing_but_the_package_and_its_program_is_in_it(self, installed: Path) -> None:
        names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
        assert names == {"drainmark", "bin"}

    def test_its_licence_is_in_it(self, installed: Path) -> None:
        (described,) = installed.glob("drainmark-*.dist-info")
        assert (described / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        assert "License-Expression: Apache-2.0" in (described / "METADATA").read_text()

    def test_a_typed_project_is_checked_against_it(self, installed: Path, tmp_path: Path) -> None:
        """Without `py.typed` mypy would refuse the import."""
        (tmp_path / "app.py").write_text(TYPED)
        (tmp_path / "wrong.py").write_text(MISTYPED)
        venv.create(tmp_path / "venv")
        (found,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        here = [path for path in sys.path if path.endswith("site-packages")]
        (found / "places.pth").write_text("\n".join([str(installed), *here]))
        python = tmp_path / "venv" / "bin" / "python"
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--python-executable", str(python)]
        ended = subprocess.run(
            [*command, "--cache-dir", str(tmp_path / "cache"), "app.py", "wrong.py"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        (error,) = [line for line in ended.stdout.splitlines() if ": error: " in line]
        assert error.startswith('wrong.py:4: error: Argument 1 to "tables" has incompatible type "int"')

    def test_a_project_has_folders_of_any_name_beside_its_application(self, installed: Path, tmp_path: Path) -> None:
        for name, text in PROJECT.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        call(installed, tmp_path, "-c", "import drainmark as dm; import jobs.helpers; dm.functor; jobs.helpers.loud")
        assert "loud_words" in drainmark(installed, tmp_path, "graph", "app.py")
        drainmark(installed, tmp_path, "run", "app.py")
        rows = json.loads(drainmark(installed, tmp_path, "show", "loud_words", "--json"))
        assert [row["word"] for row in rows] == ["TO", "BE"]
        regions = call(installed, tmp_path, "-c", LOCATION)
        assert "app__lines" in regions
