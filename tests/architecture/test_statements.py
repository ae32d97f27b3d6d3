"""The statements of `sql/`: the registry runs each one, and each statement that it names has a file."""

from __future__ import annotations

import ast

from architecture.tree import ROOT


def test_files_and_names_agree() -> None:
    files = {path.relative_to(ROOT / "sql").with_suffix("").as_posix() for path in (ROOT / "sql").glob("*/*.sql")}
    folders = {name.partition("/")[0] for name in files}
    named = {
        text
        for path in (ROOT / "resources" / "registry").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(text := node.value, str) and text.partition("/")[0] in folders
    }
    shared = {name for name in files if "." not in name}
    of_dialects = {f"{name.partition('.')[0]}." for name in files - shared}
    assert shared == {name for name in named if "." not in name}
    assert of_dialects == {f"{name.partition('.')[0]}." for name in named if "." in name}
