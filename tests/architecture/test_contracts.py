"""Rules of imports between packages: the contracts of pyproject.toml, and rules that these cannot express."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from architecture.tree import ROOT, relative

LINT_IMPORTS = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
PUBLIC = {
    *("drainmark", "pyspark", "pydantic", "typing", "__future__", "collections", "dataclasses", "datetime"),
    *("numpy", "pyarrow"),
}
"""All packages that an application may import: the public API and the libraries of its user code."""


def test_the_import_contracts_hold(tmp_path: Path) -> None:
    assert LINT_IMPORTS, "import-linter belongs to the dev extra"
    found = subprocess.run(
        [LINT_IMPORTS, "--config", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("path", sorted((ROOT / "jobs" / "apps").glob("*.py")), ids=lambda path: path.stem)
def test_applications_are_written_against_the_public_api_alone(path: Path) -> None:
    strange = [f"{relative(path)}:{line}: {name}" for line, name in _imports(path) if name.split(".")[0] not in PUBLIC]
    assert not strange


def test_the_data_plane_does_not_lean_on_its_own_facade() -> None:
    """`drainmark` is for applications: an engine that imported it would make a circular import."""
    engine = [path for path in sorted((ROOT / "jobs").rglob("*.py")) if "apps" not in path.relative_to(ROOT).parts]
    found = [
        f"{relative(path)}:{line}"
        for path in engine
        if "testing" not in path.relative_to(ROOT).parts
        for line, name in _imports(path)
        if name in ("drainmark", "drainmark.api")
    ]
    assert not found
