"""The analysed plan of a frame as a tree, read from the text that Spark prints.

This text is the only form in which every Spark gives a plan whose names are resolved: a Spark Connect server has no
other. In the plan that a client of Spark Connect sends, statements of SQL and conditions are text that is not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNREADABLE = "Unreadable _sequence_id#0"
"""The text of a node in place of lines that cannot be read: no rule knows it, and it counts as the stream."""

_BRANCH = re.compile(r"^((?:[ :]  )*)(?:[:+]- )?")
_INPUTS = {"Join": 2, "Union": None, "WithCTE": None}
"""The number of inputs of a node, None for any; other nodes have one."""


_LISTS = {"Project": 0, "Window": 0, "Aggregate": 1, "Generate": -1, "CTERelationRef": 0}
"""The number of the brackets in a node's text that hold its own columns."""

_MAKES_ROWS = re.compile(r"FlatMap(?:Co)?Groups|(?:Python)?MapIn(?:Pandas|Arrow)")
_COLUMN = re.compile(r"(?:.* AS )?(.*)#(\d+)L?", re.DOTALL)


class PlanColumn(NamedTuple):
    """A column of a node: its name, its number, and the expression that makes it, with its name."""

    name: str
    number: str
    text: str


@dataclass(slots=True)
class PlanNode:
    """A node of a plan.

    Attributes:
        children: the plans of its subqueries first, then its inputs.
        names_stream: it refers to a common table expression of the stream, which may have dropped `_sequence_id`.
        ids: numbers of the columns among its output that hold, in each row, the `_sequence_id` of the rows that it
            comes from.
    """

    text: str
    children: list[PlanNode] = field(default_factory=list)
    names_stream: bool = False
    ids: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return re.split(r"[ \[(]", self.text, maxsplit=1)[0]

    @property
    def number(self) -> str:
        """Return the number of the common table expression that the node defines or refers to."""
        return re.split(r"[ ,]", self.text)[1]

    @property
    def join(self) -> str:
        """Return the kind of a join; empty for other nodes."""
        return self.text[5:].partition(",")[0].strip() if self.name == "Join" else ""

    @property
    def inputs(self) -> list[PlanNode]:
        count = _INPUTS.get(self.name, 1)
        found = self.children if count is None else self.children[-count:]
        return [*found, *(PlanNode(UNREADABLE) for _ in range(2 - len(found)))] if self.name == "Join" else found

    @property
    def subqueries(self) -> list[PlanNode]:
        return self.children[: len(self.children) - len(self.inputs)]

    @property
    def is_stream(self) -> bool:
        """Does the node read rows of a consistent stream? Only those have `_sequence_id`; lookups lose theirs."""
        if self.children:
            return any(child.is_stream for child in self.children)
        return self.names_stream or "_sequence_id#" in self.text

    def brackets(self) -> list[str]:
        """Return the contents of the outermost square brackets in order."""
        found, depth, start = [], 0, 0
        for index, character in enumerate(self.text):
            if character == "[":
                depth += 1
                if depth == 1:
                    start = index + 1
            elif character == "]":
                depth -= 1
                if depth == 0:
                    found.append(self.text[start:index])
        return found

    def columns(self) -> list[PlanColumn]:
        """Return the columns of the node's rows in order; fewer if they cannot be read."""
        if self.name == "Union":
            return self.inputs[0].columns()
        if self.name == "Join":
            left, right = self.inputs
            return left.columns() if self.join in {"LeftSemi", "LeftAnti"} else [*left.columns(), *right.columns()]
        if self.name in _LISTS or not self.children or self.is_function:
            own = self.own_columns()
            return [*self.inputs[-1].columns(), *own] if self.name in {"Window", "Generate"} else own
        return self.inputs[-1].columns()

    def own_columns(self) -> list[PlanColumn]:
        """Return the columns that the node lists itself; none if they cannot be read."""
        found, number = self.brackets(), _LISTS.get(self.name, -1 if self.children else 0)
        return list(_listed(found[number])) if -len(found) <= number < len(found) else []

    @property
    def is_function(self) -> bool:
        """Say whether a function in Python makes the node's rows, from all columns of its inputs."""
        return _MAKES_ROWS.match(self.text) is not None

    def walk(self) -> Iterator[PlanNode]:
        yield self
        for child in self.children:
            yield from child.walk()


def analysed_plan(frame: DataFrame) -> str:
    """Return the text of the analysed plan."""
    _, _, rest = _explained(frame).partition("== Analyzed Logical Plan ==\n")
    plan, _, _ = rest.partition("\n== Optimized Logical Plan ==")
    _, _, body = plan.partition("\n")  # the first line is the schema
    return body


def _explained(frame: Any) -> str:
    """Return the text that `explain` prints.

    The text must not be printed: standard output belongs to the whole process, and an analysis has a thread of its own,
    which continues after a time-out. Redirected output would catch the output of others, or mix plans into it.
    """
    if hasattr(type(frame), "_explain_string"):  # of Spark Connect
        return str(frame._explain_string("extended"))
    return str(frame._sc._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended"))


def tree_of(text: str) -> PlanNode:
    """Return the root of a plan; lines that cannot be read, as after a line break in a literal, are a node of it."""
    root: PlanNode | None = None
    path: list[PlanNode] = []
    for line in filter(str.strip, text.splitlines()):
        prefix = _BRANCH.match(line)
        width = prefix.end() if prefix else 0
        depth, node = width // 3, PlanNode(line[width:])
        if root is None or depth == 0:
            if root is not None:
                root.children.append(PlanNode(UNREADABLE))
                continue
            root, path = node, [node]
            continue
        del path[depth:]
        path[-1].children.append(node)
        path.append(node)
    return root or PlanNode(UNREADABLE)


def _listed(text: str) -> Iterator[PlanColumn]:
    """Yield each column of a list: commas within a column are in parentheses, or in a literal."""
    depth, start = 0, 0
    for place, character in enumerate(f"{text},"):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0 and (column := _COLUMN.fullmatch(text[start:place].strip())):
            yield PlanColumn(column[1], column[2], column[0])
            start = place + 1
