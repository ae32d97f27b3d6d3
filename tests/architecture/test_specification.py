"""`tests/specification.md` and the `seed` marks agree: each id has a test, or the page says why it has none."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator

from architecture.tree import ROOT, product_files, relative

LINE = re.compile(r"^- \*\*(?P<id>(?:FM-)?[A-Z]+\d+)\*\* (?P<text>.+)$", re.MULTILINE)
NO_TEST = "*No test:*"
ID = re.compile(r"(?<![\w`])(?:FM-)?[A-Z]{1,2}\d{1,3}\b")
NOT_IDS = {"R2"}  # Cloudflare's object store


def _legend() -> dict[str, str]:
    found = [(line["id"], line["text"]) for line in LINE.finditer((ROOT / "tests/specification.md").read_text())]
    assert len({name for name, _ in found}) == len(found), "an id has two lines"
    return dict(found)


@functools.cache
def _marked() -> dict[str, str]:
    """Return for each id a file with a test that shows it."""
    return {name: relative(path) for path in (ROOT / "tests").rglob("test_*.py") for name in _ids(path.read_text())}


def _ids(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "seed":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), "an id is a text"
                yield str(argument.value)


def test_every_id_that_a_test_names_is_explained() -> None:
    legend = _legend()
    assert not {name: path for name, path in _marked().items() if name not in legend}


def test_every_id_has_a_test_or_a_reason() -> None:
    marked = _marked()
    assert not [name for name, text in _legend().items() if name not in marked and NO_TEST not in text]
    assert not [name for name, text in _legend().items() if name in marked and NO_TEST in text], "it has a test"


def _explained(source: str) -> Iterator[str]:
    """Yield the comments and strings of a module, without its code."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield token.string


def test_only_tests_name_ids() -> None:
    """Readers of the product cannot look the ids up."""
    legend = _legend()
    pages = sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md"))
    ids = legend.keys() - NOT_IDS
    naming = ((path, text) for path in product_files() if ids.intersection(ID.findall(text := path.read_text())))
    texts = [(path, text) for path, whole in naming for text in _explained(whole)]
    texts += [(path, path.read_text()) for path in pages]
    found = {(relative(path), word) for path, text in texts for word in ID.findall(text) if word in ids}
    assert not found


def _told(source: str) -> Iterator[str]:
    """Yield the comments of a module and its strings that are statements: docstrings, and those below constants."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_no_test_tells_of_an_id_that_is_not_explained() -> None:
    legend = _legend()
    kinds = {name.rstrip("0123456789") for name in legend}

    def unexplained(text: str) -> set[str]:
        known = legend.keys() | NOT_IDS
        return {word for word in ID.findall(text) if word.rstrip("0123456789") in kinds and word not in known}

    found = {
        (relative(path), word)
        for path in (ROOT / "tests").rglob("*.py")
        if unexplained(whole := path.read_text())  # cheap: most files have no such word
        for text in _told(whole)
        for word in unexplained(text)
    }
    assert not found
