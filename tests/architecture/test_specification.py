"""`tests/specification.md` and the `seed` marks agree: each id has a test, or the page says why it has none."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from architecture.tree import ROOT, product_files, relative

LINE = re.compile(r"^- \*\*(?P<id>(?:FM-)?[A-Z]+\d+)\*\* (?P<text>.+)$", re.MULTILINE)
NO_TEST = "*No test:*"
NOT_IDS = {"R2"}  # Cloudflare's object store


def _legend() -> dict[str, str]:
    found = [(line["id"], line["text"]) for line in LINE.finditer((ROOT / "tests/specification.md").read_text())]
    assert len({name for name, _ in found}) == len(found), "an id has two lines"
    return dict(found)


def _marked() -> dict[str, str]:
    """Return an id → a file with a test that shows it."""
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
    """Yield comments and texts of a module; what it computes with is none of them."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield token.string


def test_only_tests_name_ids() -> None:
    """Nobody who reads the product can look them up, or a page that is not in the repository."""
    legend = _legend()
    pages = sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md"))
    texts = [(path, text) for path in product_files() for text in _explained(path.read_text())]
    texts += [(path, path.read_text()) for path in pages]
    found = {
        (relative(path), word)
        for path, text in texts
        for word in re.findall(
            r"(?<![\w`])(?:FM-)?[A-Z]{1,2}\d{1,3}\b|\b(?:design|spec|faults|field|style|hazards)\.md", text
        )
        if word in legend.keys() - NOT_IDS or word.endswith(".md")
    }
    assert not found
