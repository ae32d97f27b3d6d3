"""The check of whether a user function vectorises: it relies on the analysed plan, never on trust.

The check walks the plan of each function over an empty frame, node by node. A node that is not known to keep rows of
different triggers apart forces groups of one trigger: a wrong "no" costs speed, a wrong "yes" gives wrong results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drainmark.jobs.runtime.analysis.analysed_plan import PlanNode, analysed_plan, tree_of
from drainmark.jobs.runtime.analysis.row_ids import KEEP_LEFT, KEEP_RIGHT, are_of, find_ids, makes_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_WISE = frozenset(
    {
        "Project",
        "Filter",
        "Generate",
        "Join",
        "Union",
        "SubqueryAlias",
        "LocalRelation",
        "LogicalRDD",
        "Relation",
        "View",
        "ResolvedHint",
        "Repartition",
        "RepartitionByExpression",
        "WithCTE",
        "CTERelationDef",
        "CTERelationRef",
        "BatchEvalPython",
        "ArrowEvalPython",
        "Range",
        "OneRowRelation",
    }
)
_KEYED_BY = {
    "Aggregate": 0,
    "Deduplicate": 0,
    "Window": 1,
    "Sort": 0,
    "Distinct": None,
    "FlatMapGroupsInPandas": 0,
    "FlatMapGroupsInArrow": 0,
}
"""The number, from 0, of the brackets in a node's text that hold its keys; None if it has no keys."""

_ROW_BY_ROW = frozenset({"Project", "Filter", "SubqueryAlias", "LocalRelation", "LogicalRDD"})
_IN_ORDER = _ROW_BY_ROW | {
    "Generate",
    "BatchEvalPython",
    "ArrowEvalPython",
    "MapInPandas",
    "MapInArrow",
    "PythonMapInArrow",
    "View",
}
"""Nodes that make any number of rows from each row, and give them in the order of the rows that they come from."""

_NEW_TAG = re.compile(r" AS _(?:sequence_id|position)#")
_NOT_DETERMINISTIC = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|"
    r"input_file_name|input_file_block_start|input_file_block_length|current_timestamp|current_date|current_time|"
    r"localtimestamp|now|reflect|try_reflect|java_method)\(",
    re.IGNORECASE,
)
_CALL = re.compile(r"\)#\d")
"""The end of a Python call, which has a number like a column, `plus(v#2)#3`; or the end of a column's name."""

_MAPS_IN_PYTHON = re.compile(r"\b(?:Python)?(?:FlatMap(?:Co)?Groups|Map)In(?:Pandas|Arrow)\b|\b\w+EvalPython")
_ID = re.compile(r"(?:^|, )_sequence_id#(\d+)L?(?=,|$)")
_SAME_ID = re.compile(r"_sequence_id#(\d+)L? (?:<=>|=) _sequence_id#(\d+)L?")
_AND = " AND "
_PICKED = re.compile(r"Project \[(\w+#\d+L?( AS \w+#\d+L?)?(, (?=\w)|(?=\])))*\]")


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The verdict on whether a function may see many triggers at once, with the reason if it may not.

    Attributes:
        only_picks: the function only picks and renames columns, so it may be computed twice.
        keeps_places: the function makes at most one row from each row, with that row's sequence id and position.
        keeps_order: the function makes any number of rows from each row, with that row's sequence id and position, and
            moves none to another partition. So the rows from one row stay in the order in which they were made.
    """

    vectorises: bool
    reason: str = ""
    only_picks: bool = False
    keeps_places: bool = False
    keeps_order: bool = False

    def with_other(self, other: GroupVerdict) -> GroupVerdict:
        """Return the verdict on a function of several outputs: it may not vectorise if one output mixes triggers."""
        return replace(
            other if self.vectorises else self,
            only_picks=self.only_picks and other.only_picks,
            keeps_places=self.keeps_places and other.keeps_places,
            keeps_order=self.keeps_order and other.keeps_order,
        )


def verdict_of(frame: DataFrame) -> GroupVerdict:
    """Return the verdict on a function, from the analysed plan of its result over empty frames."""
    root = tree_of(analysed_plan(frame))
    nodes = list(root.walk())
    _find_named_streams(nodes)
    find_ids(root, {})
    has_places = "_position" in frame.columns
    keeps_places = has_places and all(_keeps(node, _ROW_BY_ROW) for node in nodes)
    keeps_order = has_places and all(_keeps(node, _IN_ORDER) for node in nodes)
    for node in nodes:
        if node.is_stream and (reason := _objection(node)):
            return GroupVerdict(False, reason, keeps_places=keeps_places, keeps_order=keeps_order)
    if "_sequence_id" not in frame.columns:
        return GroupVerdict(False, "its result lacks _sequence_id (dm.select keeps it)")
    only_picks = all(_only_picks(node) for node in nodes)
    return GroupVerdict(True, only_picks=only_picks, keeps_places=keeps_places, keeps_order=keeps_order)


def unlike_rows(frame: DataFrame) -> str | None:
    """Return the reason why a function may not make the same of a row that is gone as it made when it came; or None."""
    root = tree_of(analysed_plan(frame))
    for node in root.walk():
        if found := _NOT_DETERMINISTIC.search(node.text):
            return f"{found.group(1)}() gives another value for the row that is gone than for the row that came"
        if len(node.children) > 1 or node.name not in _ROW_WISE | _IN_ORDER:
            return f"{node.name} makes a row of several rows"
    return None


def is_repeatable(frame: DataFrame) -> bool:
    """Say whether a frame surely has the same rows whenever it is computed: each is made of one row that is fixed."""
    return unlike_rows(frame) is None and not runs_in_python(frame)


def _find_named_streams(nodes: Sequence[PlanNode]) -> None:
    """Mark nodes that refer to a common table expression of the stream: they may have dropped `_sequence_id`."""
    left = [node for node in nodes if node.name == "CTERelationRef"]
    while True:
        streams = {node.number for node in nodes if node.name == "CTERelationDef" and node.is_stream}
        found = [node for node in left if node.number in streams]
        if not found:
            return
        for node in found:
            node.names_stream = True
        left = [node for node in left if not node.names_stream]


def runs_in_python(frame: DataFrame) -> bool:
    """Say whether the analysed plan calls a Python function, which Spark's workers run."""
    text = analysed_plan(frame)
    return _MAPS_IN_PYTHON.search(text) is not None or any(
        "#" in _arguments(text, match.start()) for match in _CALL.finditer(text)
    )


def _arguments(text: str, end: int) -> str:
    """Return the text in the parentheses that close at a place."""
    depth = 0
    for place in range(end, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if depth == 0:
            return text[place:end]
    return ""


def _objection(node: PlanNode) -> str | None:
    """Return the reason why a node over the stream may mix triggers; None if it cannot."""
    if found := _NOT_DETERMINISTIC.search(node.text):
        return f"{found.group(1)}() gives other values for other groupings"
    if any(subquery.is_stream for subquery in node.subqueries):
        return "a subquery sees the rows of all triggers"
    if node.name == "Join" and not _join_is_row_wise(node):
        return "a join of streams without equal _sequence_id mixes triggers"
    if node.name in _KEYED_BY and not _is_keyed(node):
        return f"{node.name} is not keyed by _sequence_id"
    if node.name not in _ROW_WISE and node.name not in _KEYED_BY:
        return f"{node.name} sees the rows of all triggers"
    return "its _sequence_id is not that of the rows that it is made of" if makes_ids(node) else None


def _is_keyed(node: PlanNode) -> bool:
    which, brackets = _KEYED_BY[node.name], node.brackets()
    if which is None or len(brackets) <= which:
        return False
    return not node.inputs[-1].ids.isdisjoint(_ID.findall(brackets[which]))


def _only_picks(node: PlanNode) -> bool:
    if node.name == "Project":
        return _PICKED.fullmatch(node.text) is not None
    return not node.children


def _keeps(node: PlanNode, names: Collection[str]) -> bool:
    """Say whether a node has one of the names, and gives a row the sequence id and position of its input row."""
    return node.name in names and len(node.children) <= 1 and not _NEW_TAG.search(node.text)


def _join_is_row_wise(node: PlanNode) -> bool:
    left, right = node.inputs
    if left.is_stream and right.is_stream:
        condition = node.text.partition(",")[2].strip()
        same = (_SAME_ID.fullmatch(each) for each in _conjuncts(condition))
        return any(each is not None and are_of(each[1], each[2], left.ids, right.ids) for each in same)
    return node.join in (KEEP_LEFT if left.is_stream else KEEP_RIGHT)


def _conjuncts(condition: str) -> Iterator[str]:
    """Yield the conditions that `AND` connects in a condition, each without the parentheses around it."""
    inside, depth = _outermost(condition), 0
    ends: list[int] = []
    for place, character in enumerate(inside):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and inside.startswith(_AND, place):
            ends.append(place)
    if not ends and inside == condition:
        yield condition
        return
    for start, end in zip([0, *(end + len(_AND) for end in ends)], [*ends, len(inside)], strict=True):
        yield from _conjuncts(inside[start:end])


def _outermost(text: str) -> str:
    """Return the text inside its outer parentheses, which a hint may follow; without them, the text itself."""
    depth = 0
    for place, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            ends = place == len(text) - 1 or text.startswith(", ", place + 1)
            return text[1:place] if place and ends else text
    return text
