"""`tests/specification.md` and the `seed` marks agree: each id has a test that `make test` runs, or the page says
why it has none. A test names few ids: who looks for the test of an id must find what shows it."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from architecture.tree import ROOT, product_files, relative

LINE = re.compile(r"^- \*\*(?P<id>(?:FM-)?[A-Z]+\d+)\*\* (?P<text>.+)$", re.MULTILINE)
NO_TEST = "*No test:*"
ID = re.compile(r"(?<![\w`])(?:FM-)?[A-Z]{1,2}\d{1,3}\b")
MOST_IDS = 5
LEFT_OUT = ("slow", "recovery", "kafka")
NOT_IDS = {"R2"}  # Cloudflare's object store


def _legend() -> dict[str, str]:
    found = [(line["id"], line["text"]) for line in LINE.finditer((ROOT / "tests/specification.md").read_text())]
    assert len({name for name, _ in found}) == len(found), "an id has two lines"
    return dict(found)


@dataclass(frozen=True)
class Marks:
    """The marks of a test, or of some of its parameters: the ids of `seed`, and whether the default run has it."""

    ids: frozenset[str] = frozenset()
    is_default: bool = True

    def __or__(self, other: Marks) -> Marks:
        return Marks(self.ids | other.ids, self.is_default and other.is_default)


class Marked:
    """A file of tests, as text: modules are not imported, which would take a minute."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        assigned = [node for node in self.tree.body if isinstance(node, ast.Assign)]
        self.names = {ast.unparse(target): node.value for node in assigned for target in node.targets}
        self.seen: set[ast.AST] = set()

    def tests(self) -> Iterator[tuple[str, Marks]]:
        """Yield each test with its marks and those of its class and module, for each set of parameters with marks."""
        of_module = self._of(self.names.get("pytestmark"))
        for name in self.names:  # machines of Hypothesis
            if re.fullmatch(r"Test\w+", name):
                yield name, of_module | self._of(self.names.get(f"{name}.pytestmark"))
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                own = [each.value for each in node.body if isinstance(each, ast.Assign) and _assigns_marks(each)]
                of_class = of_module | self._of(*own, *node.decorator_list)
                yield from self._tests_in(node, of_class)
        yield from self._tests_in(self.tree, of_module)
        calls = [node for node in ast.walk(self.tree) if _is_mark(node, "seed") and node not in self.seen]
        yield from (("marks that the code gives", self._of(call)) for call in calls)

    def _tests_in(self, holder: ast.Module | ast.ClassDef, of_holder: Marks) -> Iterator[tuple[str, Marks]]:
        for node in holder.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                given = [each for each in node.decorator_list if _is_mark(each, "parametrize")]
                marks = of_holder | self._of(*(each for each in node.decorator_list if each not in given))
                sets = [self._parameters(each) for each in given]
                is_default = all(any(each.is_default for each in ways) for ways in sets)
                found = [Marks(), *(each for ways in sets for each in ways)]
                yield from ((node.name, marks | each | Marks(is_default=is_default)) for each in found)

    def _parameters(self, call: ast.expr) -> list[Marks]:
        """Return the marks of each parameter that is written down; what code makes has none that are known here."""
        assert isinstance(call, ast.Call)
        values = self._named(call.args[1]) if len(call.args) > 1 else None
        return [marks for each in getattr(values, "elts", [values]) for marks in self._of_parameter(each)] or [Marks()]

    def _of_parameter(self, value: ast.AST | None) -> list[Marks]:
        value = value.value if isinstance(value, ast.Starred) else value
        if isinstance(value, ast.ListComp | ast.GeneratorExp):
            value = value.elt
        given = [each.value for each in value.keywords if each.arg == "marks"] if isinstance(value, ast.Call) else []
        return [self._of(way) for each in given for way in _ways(each)] or [Marks()]

    def _of(self, *found: ast.AST | None) -> Marks:
        nodes = [node for each in found if each is not None for node in ast.walk(each)]
        self.seen.update(nodes)
        ids = {_text(each) for node in nodes if _is_mark(node, "seed") for each in node.args}
        is_default = not any(_is_mark(node, name) for node in nodes for name in LEFT_OUT)
        named = [self._named(node) for node in nodes if isinstance(node, ast.Name)]
        marks = Marks(frozenset(ids), is_default and not any(map(_asks_for_data, nodes)))
        return functools.reduce(
            Marks.__or__, (self._of(each) for each in named if not isinstance(each, ast.Name | ast.Dict)), marks
        )

    def _named(self, value: ast.expr) -> ast.expr:
        return self.names.get(value.id, value) if isinstance(value, ast.Name) else value


def _ways(marks: ast.expr) -> list[ast.expr]:
    return [marks.body, marks.orelse] if isinstance(marks, ast.IfExp) else [marks]


def _assigns_marks(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _is_mark(node: Any, name: str) -> bool:
    """Say whether it is `pytest.mark.slow`; of marks with arguments, the call."""
    if name not in LEFT_OUT:
        node = node.func if isinstance(node, ast.Call) else None
    holder = node.value if isinstance(node, ast.Attribute) and node.attr == name else None
    return isinstance(holder, ast.Attribute) and holder.attr == "mark"


def _asks_for_data(node: ast.AST) -> bool:
    """Say whether a test is skipped where the data of others are absent."""
    return _is_mark(node, "skipif") and "data is" in ast.unparse(node)


def _text(argument: ast.AST) -> str:
    assert isinstance(argument, ast.Constant), "an id is a text"
    return str(argument.value)


@functools.cache
def _tests() -> list[tuple[str, Marks]]:
    """Return the address of each test, and its marks."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.seed(" in path.read_text()]
    return [(f"{relative(path)}::{name}", marks) for path in files for name, marks in Marked(path.read_text()).tests()]


def test_every_id_that_a_test_names_is_explained() -> None:
    legend = _legend()
    assert not {(name, where) for where, marks in _tests() for name in marks.ids if name not in legend}


def test_every_id_has_a_test_or_a_reason() -> None:
    marked = {name for _, marks in _tests() for name in marks.ids}
    assert not [name for name, text in _legend().items() if name not in marked and NO_TEST not in text]
    assert not [name for name, text in _legend().items() if name in marked and NO_TEST in text], "it has a test"


def test_every_id_has_a_test_in_the_default_run() -> None:
    """A slow test shows more of the same behaviour; what nobody runs daily breaks unseen."""
    marked = {name for _, marks in _tests() for name in marks.ids}
    by_default = {name for _, marks in _tests() if marks.is_default for name in marks.ids}
    assert sorted(marked - by_default) == []


def test_no_test_names_more_ids_than_it_shows() -> None:
    """With its class and module: who marks a whole module says of each test that it shows all of that."""
    assert {(where, len(marks.ids)) for where, marks in _tests() if len(marks.ids) > MOST_IDS} == set()


MARKED = """
import pytest

slow = pytest.mark.slow
pytestmark = [pytest.mark.spark, pytest.mark.seed("V1")]
POINTS = [pytest.param(1, marks=pytest.mark.recovery), pytest.param(2, marks=slow)]
TestMachine = Machine.TestCase
TestMachine.pytestmark = [pytest.mark.seed("V2", "V3")]

@pytest.mark.seed("V4")
class TestClass:
    pytestmark = pytest.mark.kafka

    @pytest.mark.seed("V5")
    def test_in_a_class(self): ...

@pytest.mark.skipif(True, reason="the shared data is absent")
def test_of_data(): ...

@slow
def test_slow(): ...

@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_never(): ...

@pytest.mark.parametrize("n", [pytest.param(n, marks=() if n else slow) for n in range(3)])
def test_sometimes(): ...

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=[slow, pytest.mark.seed("V6")])])
def test_seldom(): ...
"""


def test_marks_are_read_as_pytest_reads_them() -> None:
    found: dict[str, tuple[str, bool]] = {}
    for name, marks in Marked(MARKED).tests():
        ids, is_default = found.get(name, ("", False))
        found[name] = max(ids, " ".join(sorted(marks.ids))), is_default or marks.is_default
    assert found == {
        "TestMachine": ("V1 V2 V3", True),
        "test_in_a_class": ("V1 V4 V5", False),
        "test_of_data": ("V1", False),
        "test_slow": ("V1", False),
        "test_never": ("V1", False),
        "test_sometimes": ("V1", True),
        "test_seldom": ("V1 V6", True),
    }


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
