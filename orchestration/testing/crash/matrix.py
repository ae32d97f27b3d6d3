"""The matrix of failures, made from `FailPoint`: the points at which a run can fail, and the ways to fail there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.graph.application import nearest

Action = Literal["raise", "lost_reply", "kill"]
"""Raise an error in this process; let a commit succeed and lose its reply; kill a separate process with SIGKILL."""

Grouping = int | Literal["all"]
"""Files in each group; "all" is one group of all files."""

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
    """One failure: its point, its kind, and the number of files in each group."""

    point: FailPoint
    action: Action
    grouping: Grouping

    def __str__(self) -> str:
        return f"{self.action} at {self.point.value} in {size_of(self.grouping)}"


def size_of(grouping: Grouping) -> str:
    """Return a grouping in words."""
    return "one group of all files" if grouping == "all" else f"groups of {grouping}"


def is_of_rewind(point: FailPoint) -> bool:
    """Is the point passed only by a rewind?"""
    return point.value.startswith("rewind")


def is_of_compaction(point: FailPoint) -> bool:
    """Is the point passed only by the compaction of tables?"""
    return point.value.startswith("compact.")


def is_of_repair(point: FailPoint) -> bool:
    """Is the point passed only by the repair of tables that others changed?"""
    return point.value.startswith("repair.")


def is_of_slices(point: FailPoint) -> bool:
    """Is the point passed only when slices are cut, or segments sealed or purged, so never with files as triggers?"""
    return point.value.startswith(("slice.", "segment."))


def is_of_group(point: FailPoint) -> bool:
    """Does each group pass the point, so that the grouping matters?"""
    return point.value.startswith(_OF_A_GROUP)


def actions(point: FailPoint, asked: Sequence[Action] = ACTIONS) -> tuple[Action, ...]:
    """Return the ways to fail at a point: only the reply to a commit can be lost."""
    return tuple(action for action in asked if action != "lost_reply" or point.value.endswith(".after_commit"))


def passings(point: FailPoint) -> tuple[int, ...]:
    """Return the passings to let fail, in the order to try. With several tables the second is better than the first:
    one table is done then, and others are not."""
    return (2, 1) if point.value.startswith(_OF_SEVERAL_TABLES) else (1,)


def points(asked: Sequence[str] | Literal["all"]) -> tuple[FailPoint, ...]:
    """Return fail points by name; "all" are those that runs, rewinds and compactions pass.

    Raises:
        UnknownName: there is no fail point of a name; the remedy has the nearest name.
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
    """Yield the failures to try; points that groups do not pass are tried with the last grouping only.

    Raises:
        UsageError: an action or a grouping is not valid.
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
