"""The offer of `import drainmark as dm`: the names of `drainmark.api.__all__`, and the packages of its test kit."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from typing import Any

import pytest
from architecture.tree import ROOT

import drainmark as dm
from drainmark import api
from drainmark.jobs.operators.catalogue import exports


def test_the_names_are_those_that_users_may_use() -> None:
    assert dir(dm) == sorted(api.__all__)
    starred: dict[str, Any] = {}
    exec("from drainmark import *", starred)  # noqa: S102
    assert sorted(starred.keys() - {"__builtins__"}) == sorted(api.__all__)


@pytest.mark.parametrize("name", api.__all__)
def test_a_name_works(name: str) -> None:
    assert getattr(dm, name) is getattr(api, name)


def test_what_an_operator_file_exports_is_among_them() -> None:
    assert exports().keys() <= set(api.__all__)


@pytest.mark.parametrize("name", ["functr", "annotations", "importlib", "_PACKAGES"])
def test_nothing_else_is(name: str) -> None:
    assert name not in dir(dm)


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'drainmark' has no attribute 'functr'"):
        dm.functr  # noqa: B018


def test_it_is_typed() -> None:
    assert (ROOT / "drainmark" / "py.typed").is_file()


def imported_by_the_kit() -> set[str]:
    """Return the packages that the modules of the test kit import, except those of Python and Drainmark."""
    found: set[str] = set()
    for path in (ROOT / "orchestration" / "testing").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"drainmark"}


def test_the_extra_has_what_the_test_kit_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    installed = {re.split(r"[^\w-]", requirement)[0] for requirement in wanted}
    brought = importlib.metadata.packages_distributions()
    assert [name for name in sorted(imported_by_the_kit()) if not installed.intersection(brought[name])] == []
