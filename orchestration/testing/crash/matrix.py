"""The matrix of failures, made from `FailPoint`: where a run can fail, in which ways, and what it takes to do so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.graph.application import nearest

Action = Literal["raise", "lost_reply", "kill"]
"""Raise an error in this process; let a commit land and lose the answer; SIGKILL a process of its own."""

Grouping = int | Literal["all"]
"""Files a group; "all" is one group of every file."""

ACTIONS: tuple[Action, ...] = ("raise", "lost_reply", "kill")
_OF_A_GROUP = (
    "assign.",
    "process.",
    "drain.",
    "checkpoint_pending.",
    "checkpoint.",
    "publish.",
    "resume.",
    "feed.",
    "send.",
)
_OF_SEVERAL_TABLES = ("publish.", "rewind_table.")


@dataclass(frozen=True, slots=True)
class Cell:
    """One failure: where, how, and in groups of how many files."""

    point: FailPoint
    action: Action
    grouping: Grouping

    def __str__(self) -> str:
        return f"{self.action} at {self.point.value} in {size_of(self.grouping)}"


def size_of(grouping: Grouping) -> str:
    """Return a grouping in words."""
    return "one group of all files" if grouping == "all" else f"groups of {grouping}"


def is_of_rewind(point: FailPoint) -> bool:
    """Is the point passed by a rewind, and by nothing else?"""
    return point.value.startswith("rewind")


def is_of_compaction(point: FailPoint) -> bool:
    """Is the point passed by the compaction of tables, and by nothing else?"""
    return point.value.startswith("compact.")


def is_of_repair(point: FailPoint) -> bool:
    """Is the point passed where tables are put right that others changed, and by nothing else?"""
    return point.value.startswith("repair.")


def is_of_slices(point: FailPoint) -> bool:
    """Is the point passed where slices are cut and segments sealed or purged, so not by folders whose files are
    triggers?"""
    return point.value.startswith(("slice.", "segment."))


def is_of_group(point: FailPoint) -> bool:
    """Is the point passed by each group anew, so that the grouping matters?"""
    return point.value.startswith(_OF_A_GROUP)


def actions(point: FailPoint, asked: Sequence[Action] = ACTIONS) -> tuple[Action, ...]:
    """Return the ways to fail at a point: only the reply to a commit can be lost."""
    return tuple(action for action in asked if action != "lost_reply" or point.value.endswith(".after_commit"))


def passings(point: FailPoint) -> tuple[int, ...]:
    """Return which passing is to fail, the better ones first: of several tables the second, so that one is done and
    others are not; the first where there are no several."""
    return (2, 1) if point.value.startswith(_OF_SEVERAL_TABLES) else (1,)


def points(asked: Sequence[str] | Literal["all"]) -> tuple[FailPoint, ...]:
    """Return fail points by name; "all" are those that runs, rewinds and compactions pass.

    Raises:
        UnknownName: one is none; the remedy names the nearest.
    """
    if asked == "all":
        return tuple(point for point in FailPoint if not is_of_repair(point))
    if isinstance(asked, str):
        asked = [asked]
    known = [point.value for point in FailPoint]
    for name in asked:
        if name not in known:
            raise UnknownName(f"there is no fail point {name!r}", remedy=nearest(name, known))
    return tuple(FailPoint(name) for name in asked)


def cells(asked: Sequence[FailPoint], ways: Sequence[Action], groupings: Sequence[Grouping]) -> Iterator[Cell]:
    """Yield the failures to try; what no group passes is tried with the last grouping only.

    Raises:
        UsageError: an action is none, or a grouping is none.
    """
    for action in ways:
        if action not in ACTIONS:
            raise UsageError(f"there is no action {action!r}", remedy=f"one of {', '.join(ACTIONS)}")
    for grouping in groupings:
        if grouping != "all" and grouping < 1:
            raise UsageError(f"a group has no {grouping!r} files", remedy='a number from 1, or "all"')
    for point in asked:
        for action in actions(point, ways):
            for grouping in groupings if is_of_group(point) else groupings[-1:]:
                yield Cell(point, action, grouping)
