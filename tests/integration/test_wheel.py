"""What is installed from a wheel is whole: registry, shipped applications, Dagster's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel of this checkout holds; what it needs comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_symlink():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sources]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("drainmark-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def call(installed: Path, cwd: Path, *command: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRAINMARK_", "PYTEST_", "DAGSTER_"))}
    ended = subprocess.run(
        [sys.executable, *command], cwd=cwd, env={**clean, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_new_project_runs_on_it(installed: Path, tmp_path: Path) -> None:
    where = call(installed, tmp_path, "-c", "import drainmark; print(*drainmark.__path__)")
    assert where.strip() == str(installed / "drainmark")
    call(installed, tmp_path, "-m", "drainmark.orchestration.cli.main", "init", "words")
    words = tmp_path / "words"
    (words / "inbox" / "a.txt").write_text("to be or not to be\n")
    call(installed, words, "-m", "drainmark.orchestration.cli.main", "run", "app.py")
    rows = json.loads(call(installed, words, "-m", "drainmark.orchestration.cli.main", "show", "word_counts", "--json"))
    assert {row["word"]: row["count"] for row in rows} == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_dagster_s_files_are_where_dev_looks_for_them(installed: Path) -> None:
    for name in ("dagster.yaml", "workspace.yaml"):
        assert (installed / "drainmark" / "orchestration" / "shipped" / name).read_bytes() == (ROOT / name).read_bytes()


def test_nothing_but_the_project_is_in_it(installed: Path) -> None:
    assert [path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")] == ["drainmark"]
