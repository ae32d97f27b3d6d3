"""From which columns of the input each column of a table comes, by the analysed plans of a region's operators.

Columns are followed by their numbers through the plan of each operator. The answer never lacks a column: where a plan
cannot be read, or a function in Python makes whole rows, a column comes from every column that the function gets.
Columns that only decide which rows there are, as in a filter, a key of a join or the order of a window, do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import TAGS
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.analysis.analysed_plan import UNREADABLE, PlanColumn, PlanNode, analysed_plan, tree_of
from drainmark.jobs.runtime.analysis.blueprint import Blueprint, seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBER = re.compile(r"(\)|lambda \w+)?#(\d+)")
"""A number in an expression, with what is before it if it may be no column: a call of Python, a lambda's variable."""

_PICKED = re.compile(r"[^#()]+#\d+L?")
_OVER = "windowspecdefinition("


class Derivation(IntEnum):
    """How the values of a column come from another's; the largest counts if there are several ways."""

    IDENTITY = 1
    TRANSFORMATION = 2
    AGGREGATION = 3


@dataclass(frozen=True, slots=True, order=True)
class InputColumn:
    """A column of the input.

    Attributes:
        operator: name of the source, or of the lookup, that reads it.
    """

    operator: str
    column: str


Origins = Mapping[InputColumn, Derivation]
"""The columns of the input that a column comes from; none if it is made of constants and tags alone."""

_Stream = Mapping[str, Origins]
"""By column of a stream or a table its origins, without the tags."""


def column_lineage(blueprint: Blueprint) -> dict[str, dict[str, Origins]]:
    """Return the origins of each column of each table that readers see, by name of the table and of the column.

    The plans are asked of Spark, some milliseconds an operator; the blueprint's session must still be there.
    Quarantine, states, and tables outside the region are not among the tables.
    """
    streams: dict[str, _Stream] = {}
    for operator in blueprint.region.run_order:
        inputs = [streams[port.stream] for port in operator.inputs if port.stream in streams]
        for output, frame in zip(operator.outputs or ("",), blueprint.results[operator.name], strict=True):
            streams[operator.stream(output)] = _stream_of(operator, seen(operator, frame), inputs)
    return {
        table.name: {name: streams[table.operator].get(name, {}) for name in table.column_names if name not in TAGS}
        for table in seen_tables(blueprint)
    }


def seen_tables(blueprint: Blueprint) -> list[RegionTable]:
    """Return the tables that the sinks of a region write for readers: no histories, states, or quarantine."""
    histories = {table.history for table in blueprint.tables}
    sinks = {operator.name for operator in blueprint.region.operators if isinstance(operator, Sink)}
    return [
        table
        for table in blueprint.tables
        if table.operator in sinks and table.name not in histories and table.role is not TableRole.CHANGES
    ]


def _stream_of(operator: Operator, frame: DataFrame, inputs: Sequence[_Stream]) -> _Stream:
    names = [name for name in frame.columns if name not in TAGS]
    if not operator.inputs:
        return {name: {InputColumn(operator.name, name): Derivation.IDENTITY} for name in names}
    if isinstance(operator, Sink):  # it changes no value; the plan of an upsert packs whole rows, to find the last
        return inputs[0]
    root = tree_of(analysed_plan(frame))
    walk = _Walk(inputs)
    walk.visit(root)
    columns = root.columns()
    if not walk.is_readable or [column.name for column in columns] != list(frame.columns):
        every = _merged((origins for stream in inputs for origins in stream.values()), Derivation.TRANSFORMATION)
        return dict.fromkeys(names, every)
    return {column.name: walk.known.get(column.number, {}) for column in columns if column.name not in TAGS}


def _merged(found: Iterable[Origins], kind: Derivation = Derivation.IDENTITY) -> Origins:
    """Return all origins together, each with its largest kind, which is at least `kind`."""
    merged: dict[InputColumn, Derivation] = {}
    for origins in found:
        for origin, known in origins.items():
            merged[origin] = max(merged.get(origin, kind), known, kind)
    return merged


@dataclass(slots=True)
class _Walk:
    """The origins of the columns of one plan.

    Attributes:
        inputs: the streams that the operator reads.
        known: by number of a column.
        reads: whether some leaf of the plan is one of the inputs.
        is_broken: whether some node cannot be read.
    """

    inputs: Sequence[_Stream]
    known: dict[str, Origins] = field(default_factory=dict)
    reads: bool = False
    is_broken: bool = False
    _definitions: dict[str, PlanNode] = field(default_factory=dict)

    @property
    def is_readable(self) -> bool:
        return self.reads and not self.is_broken

    def visit(self, node: PlanNode) -> None:
        """Learn the columns of a node and of all below it."""
        for child in node.children:
            self.visit(child)
        self.is_broken |= node.text == UNREADABLE
        if node.name == "CTERelationDef":
            self._definitions[node.number] = node
        elif node.name == "CTERelationRef":
            defined = self._definitions.get(node.number)
            self._same_places(node, [defined] if defined is not None else [])
        elif not node.children:
            self._read(node)
        elif node.name == "Union":
            self._same_places(node, node.inputs)
        elif node.is_function:
            every = self._all_of(node.inputs + node.subqueries)
            self.known.update((column.number, every) for column in node.own_columns())
        elif node.name in {"Project", "Aggregate", "Window", "Generate"}:
            for column in node.own_columns():
                if column.number not in self.known:
                    self.known[column.number] = self._made(node, column)

    def _read(self, leaf: PlanNode) -> None:
        """Learn the columns of a leaf: those of the streams that have its columns, else of no stream."""
        columns = leaf.columns()
        names = [column.name for column in columns if column.name not in TAGS]
        found = [stream for stream in self.inputs if list(stream) == names]
        self.reads |= bool(found)
        for column in columns:
            self.known[column.number] = _merged(stream.get(column.name, {}) for stream in found)

    def _same_places(self, node: PlanNode, others: Sequence[PlanNode]) -> None:
        """Learn the columns of a node each of which is, by its place, a column of each of the others."""
        columns, found = node.columns(), [other.columns() for other in others]
        if not others or any(len(each) != len(columns) for each in found):
            self.is_broken = True
            return
        for place, column in enumerate(columns):
            self.known[column.number] = _merged(self.known.get(each[place].number, {}) for each in found)

    def _made(self, node: PlanNode, column: PlanColumn) -> Origins:
        """Return the origins of a column that a node makes by an expression."""
        made = column.text.rpartition(" AS ")[0] or column.text
        if node.name == "Generate":
            made = node.text[: node.text.rindex("[")]
        kind = Derivation.TRANSFORMATION
        if _PICKED.fullmatch(made):
            kind = Derivation.IDENTITY
        elif node.name == "Window" or (node.name == "Aggregate" and made not in node.brackets()[0]):
            kind = Derivation.AGGREGATION
        return _merged((self._origins(match, node) for match in _NUMBER.finditer(_without_window(made))), kind)

    def _origins(self, match: re.Match[str], node: PlanNode) -> Origins:
        known = self.known.get(match[2])
        if known is not None or match[1]:
            return known or {}
        return self._all_of(node.subqueries or node.inputs)

    def _all_of(self, nodes: Iterable[PlanNode]) -> Origins:
        columns = (column for node in nodes for column in node.columns())
        return _merged((self.known.get(column.number, {}) for column in columns), Derivation.TRANSFORMATION)


def _without_window(text: str) -> str:
    """Return an expression without the keys, the order and the frame of its window."""
    start = text.find(_OVER)
    if start < 0:
        return text
    depth = 0
    for place in range(start + len(_OVER) - 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return text[:start] + text[place + 1 :]
    return text
