"""The check of whether a user function vectorises: it relies on the analysed plan, never on trust.

The check walks the plan of each function over an empty frame, node by node. A node that is not known to keep rows of
different triggers apart forces groups of one trigger: a wrong "no" costs speed, a wrong "yes" gives wrong results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_WISE = frozenset(
    {
        "Project",
        "Filter",
        "Generate",
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
    r"input_file_name|current_timestamp|current_date|current_time|localtimestamp|now)\(",
    re.IGNORECASE,
)
_CALL = re.compile(r"\)#\d")
"""The end of a Python call, which has a number like a column, `plus(v#2)#3`; or the end of a column's name."""

_MAPS_IN_PYTHON = re.compile(r"\b(?:Python)?(?:FlatMap(?:Co)?Groups|Map)In(?:Pandas|Arrow)\b|\b\w+EvalPython")
_ID = re.compile(r"(?:^|, )_sequence_id#\d+L?(?=,|$)")
_SAME_ID = re.compile(r"_sequence_id#(\d+)L? (?:<=>|=) _sequence_id#(?!\1L?\b)\d+L?")
_AND = " AND "
_PICKED = re.compile(r"Project \[(\w+#\d+L?( AS \w+#\d+L?)?(, (?=\w)|(?=\])))*\]")
_BRANCH = re.compile(r"^((?:[ :]  )*)(?:[:+]- )?")
_STREAM_LEFT = frozenset({"Inner", "LeftOuter", "LeftSemi", "LeftAnti", "Cross"})
_STREAM_RIGHT = frozenset({"Inner", "RightOuter", "Cross"})


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


@dataclass(slots=True)
class _Node:
    text: str
    children: list[_Node] = field(default_factory=list)
    names_stream: bool = False

    @property
    def name(self) -> str:
        return re.split(r"[ \[(]", self.text, maxsplit=1)[0]

    @property
    def number(self) -> str:
        """Return the number of the common table expression that the node defines or refers to."""
        return re.split(r"[ ,]", self.text)[1]

    @property
    def is_stream(self) -> bool:
        """Does the node read rows of a consistent stream? Only those have `_sequence_id`; lookups lose theirs."""
        if self.children:
            return any(child.is_stream for child in self.children)
        return self.names_stream or "_sequence_id#" in self.text

    def walk(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.walk()


def verdict_of(frame: DataFrame) -> GroupVerdict:
    """Return the verdict on a function, from the analysed plan of its result over empty frames."""
    text = analysed_plan(frame)
    if "subquery#" in text or "exists#" in text:
        return GroupVerdict(False, "a subquery sees the rows of all triggers")
    nodes = list(_parse(text).walk())
    _find_named_streams(nodes)
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


def _find_named_streams(nodes: Sequence[_Node]) -> None:
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


def _parse(text: str) -> _Node:
    root: _Node | None = None
    path: list[_Node] = []
    for line in filter(str.strip, text.splitlines()):
        prefix = _BRANCH.match(line)
        width = prefix.end() if prefix else 0
        depth, node = width // 3, _Node(line[width:])
        if root is None or depth == 0:
            if root is not None:
                root.children.append(_Node("Unreadable"))  # a line break inside an expression: judge it unknown
                root.children[-1].text = "Unreadable _sequence_id#0"
                continue
            root, path = node, [node]
            continue
        del path[depth:]
        path[-1].children.append(node)
        path.append(node)
    return root or _Node("Unreadable _sequence_id#0")


def _objection(node: _Node) -> str | None:
    """Return the reason why a node over the stream may mix triggers; None if it cannot."""
    if found := _NOT_DETERMINISTIC.search(node.text):
        return f"{found.group(1)}() gives other values for other groupings"
    name = node.name
    if name in _ROW_WISE:
        return None
    if name == "Join":
        return None if _join_is_row_wise(node) else "a join of streams without equal _sequence_id mixes triggers"
    brackets = _brackets(node.text)
    if name in _KEYED_BY:
        which = _KEYED_BY[name]
        if which is not None and len(brackets) > which and _ID.search(brackets[which]):
            return None
        return f"{name} is not keyed by _sequence_id"
    return f"{name} sees the rows of all triggers"


def _only_picks(node: _Node) -> bool:
    if node.name == "Project":
        return _PICKED.fullmatch(node.text) is not None
    return not node.children


def _keeps(node: _Node, names: Collection[str]) -> bool:
    """Say whether a node has one of the names, and gives a row the sequence id and position of its input row."""
    return node.name in names and len(node.children) <= 1 and not _NEW_TAG.search(node.text)


def _join_is_row_wise(node: _Node) -> bool:
    kind, _, condition = node.text.removeprefix("Join ").partition(",")
    left, right = (child.is_stream for child in node.children)
    if left and right:
        return any(_SAME_ID.fullmatch(each) for each in _conjuncts(condition.strip()))
    return kind.strip() in (_STREAM_LEFT if left else _STREAM_RIGHT)


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


def _brackets(text: str) -> list[str]:
    """Return the contents of the outermost square brackets in order."""
    found, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character == "[":
            depth += 1
            if depth == 1:
                start = index + 1
        elif character == "]":
            depth -= 1
            if depth == 0:
                found.append(text[start:index])
    return found
