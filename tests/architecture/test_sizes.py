"""Limits of the sizes of classes, functions and folders; and names of modules that tell their content."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from architecture.tree import product_files, relative

CLASS_LINES = 250
CLASS_METHODS = 20
BODY_LINES = 50
ROOM_MODULES = 17
NAMES_OF_OTHERS = {"jobs/streams/stream.py Stream"}
"""A node of streamz has one method for each operator, and users know these names."""

NAMELESS = {"utils", "util", "helpers", "common", "manager", "base", "misc"}


def _classes(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each class with the number of its lines and the number of its methods."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            yield f"{relative(path)} {node.name}", (node.end_lineno or 0) - node.lineno + 1, methods


def test_no_class_is_larger_than_the_caps() -> None:
    classes = [item for path in product_files() for item in _classes(path)]
    assert {
        name for name, lines, methods in classes if lines > CLASS_LINES or methods > CLASS_METHODS
    } == NAMES_OF_OTHERS


def _bodies(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function with the number of lines of its body, without the docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if body:
                yield f"{relative(path)}:{node.lineno} {node.name}", (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_no_function_is_longer_than_the_cap() -> None:
    bodies = dict(item for path in product_files() for item in _bodies(path))
    assert {name: length for name, length in bodies.items() if length > BODY_LINES} == {}


def test_no_folder_has_more_modules_than_the_cap_and_each_says_what_it_is_for() -> None:
    modules = Counter(path.parent for path in product_files() if path.stem != "__init__")
    assert {relative(folder): count for folder, count in modules.items() if count > ROOM_MODULES} == {}
    firsts = [path for path in product_files() if path.stem == "__init__"]
    assert {path.parent for path in firsts} >= set(modules)
    assert [relative(path) for path in firsts if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [relative(path) for path in product_files() if path.stem in NAMELESS or path.parent.name in NAMELESS] == []
