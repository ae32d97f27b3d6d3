"""The files that belong to the code: if one changes, attempts are counted from 0 again."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainmark.orchestration.workplace.application_identity import code_digest


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for folder in ("flows/helpers/deep", "flows/inbox", "sql/app"):
        (tmp_path / folder).mkdir(parents=True)
    for package in ("flows/helpers", "flows/helpers/deep"):
        (tmp_path / package / "__init__.py").write_text("")
    path = tmp_path / "flows" / "app.py"
    path.write_text("x = 1\n")
    return path


@pytest.mark.seed("AU1")
@pytest.mark.parametrize(
    ("changed", "is_code"),
    [
        ("flows/app.py", True), ("flows/other.py", True), ("flows/helpers/deep/more.py", True),
        ("sql/app/top.sql", True), ("drainmark.toml", True),
        ("flows/inbox/data.csv", False), ("flows/inbox/script.py", False), ("flows/app.txt", False),
        (".drainmark/state.py", False), ("flows/__pycache__/app.py", False),
    ],
)  # fmt: skip
def test_code_is_what_an_application_may_import_or_read(app: Path, tmp_path: Path, changed: str, is_code: bool) -> None:
    before = code_digest(str(app), tmp_path)
    assert before == code_digest(str(app.parent / "." / "app.py"), tmp_path), "however its path is written"
    path = tmp_path / changed
    path.parent.mkdir(exist_ok=True)
    path.write_text("y = 2\n")
    assert (code_digest(str(app), tmp_path) != before) is is_code


def test_an_application_without_a_file_has_none(tmp_path: Path) -> None:
    assert code_digest("", tmp_path) == ""
