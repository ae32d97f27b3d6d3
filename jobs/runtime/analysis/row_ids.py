"""The columns of an analysed plan that hold each row's `_sequence_id`, followed by number from the stream upwards.

A column of that name may hold something else: a literal, another column that was renamed, the id of a row that a join
did not match. To group by such a column would mix triggers.
"""

from __future__ import annotations

import re

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.runtime.analysis.analysed_plan import PlanNode

KEEP_LEFT = frozenset({"Inner", "LeftOuter", "LeftSemi", "LeftAnti", "Cross"})
KEEP_RIGHT = frozenset({"Inner", "RightOuter", "Cross"})
"""The joins whose every row has a row of the left, or of the right, input."""

_NAMED = re.compile(rf"\b{SEQUENCE_ID}#(\d+)")
_MADE = re.compile(rf" AS {SEQUENCE_ID}#(\d+)")
_RENAMED = re.compile(r"(?:\[|, )(?:cast\()?[\w ]+#(\d+)L?(?: as bigint\))? AS [^#]+#(\d+)")
_FIRST_KNOWN = re.compile(r"(?:\[|, )coalesce\([\w ]+#(\d+)L?, (?:[\w ]+#(\d+))?[^#]*\) AS [^#]+#(\d+)")
_NONE = frozenset[str]()


def find_ids(node: PlanNode, definitions: dict[str, PlanNode]) -> None:
    """Set `ids` of a node and of all below it.

    Args:
        definitions: of common table expressions, by number; those found are added.
    """
    for child in node.children:
        find_ids(child, definitions)
    if node.name == "CTERelationDef":
        definitions[node.number] = node
    if node.name == "Join":
        left, right = node.inputs
        node.ids = (left.ids if node.join in KEEP_LEFT else _NONE) | (right.ids if node.join in KEEP_RIGHT else _NONE)
    elif node.name == "Union":
        node.ids = _in_places(node, node.inputs)
    elif node.name == "CTERelationRef" and node.number in definitions:
        node.ids = _in_places(node, [definitions[node.number]])
    elif not node.children or node.name.startswith("FlatMapGroups"):  # what a function returns is checked later
        node.ids = frozenset(_NAMED.findall(node.text))
    else:
        node.ids = _with_new_names(node, node.inputs[-1])


def makes_ids(node: PlanNode) -> bool:
    """Say whether a node has a column named `_sequence_id` that does not hold the id of its rows."""
    made = set(_MADE.findall(node.text))
    if node.name == "Generate":
        made.update(_NAMED.findall(node.brackets()[-1] if node.brackets() else node.text))
    elif node.name == "Union":
        made.update(number for name, number, _ in node.columns() if name == SEQUENCE_ID)
    return not made <= node.ids


def are_of(one: str, other: str, left: frozenset[str], right: frozenset[str]) -> bool:
    """Say whether one of two numbers is an id of the left, and the other of the right, of a join's inputs."""
    return (one in left and other in right) or (one in right and other in left)


def _with_new_names(node: PlanNode, below: PlanNode) -> frozenset[str]:
    """Return the ids below a node, and those that it renames, or takes from the two sides of a full join."""
    ids = set(below.ids)
    ids.update(new for old, new in _RENAMED.findall(node.text) if old in below.ids)
    sides = [side.ids for side in below.inputs] if below.join == "FullOuter" else []
    for first, second, new in _FIRST_KNOWN.findall(node.text):
        if first in below.ids or (sides and are_of(first, second, *sides)):
            ids.add(new)
    return frozenset(ids)


def _in_places(node: PlanNode, others: list[PlanNode]) -> frozenset[str]:
    """Return the numbers of a node's columns whose places hold ids in each of the others."""
    columns = node.columns()
    found = [(other.columns(), other.ids) for other in others]
    return frozenset(
        number
        for place, (_, number, _) in enumerate(columns)
        if all(len(each) == len(columns) and each[place].number in ids for each, ids in found)
    )
