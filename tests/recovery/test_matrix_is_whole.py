"""Completeness of the matrix: each commit has a fail point before and after it, and each fail point has its tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from architecture.tree import ROOT
from graphs import GRAPHS
from test_golden_matrix import KILLED, POINTS, REPLIES, matrix, points_of
from test_repairs_recover import OF_REPAIRS, repairs_matrix

from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.testing.crash.matrix import actions

COMMITTING = (
    "checkpoints/checkpoint_table", "delta/managed_table", "delta/commits", "delta/overwritten_tables",
    "delta/autonomous_tables", "delta/health/damaged_tables", "sinks/database_tables", "sinks/file_tables",
)  # fmt: skip
"""The modules of `resources` that commit through the one guarded function."""


SELDOM = {FailPoint.NOTE_AFTER}
"""Commits that are not in the default run: a note may be written once more, and no table has it."""


def committed_verbs() -> set[str]:
    """Return the names of all steps that commit: the names that the code gives to the guarded function."""
    trees = [ast.parse((ROOT / "resources" / f"{name}.py").read_text()) for name in COMMITTING]
    return {verb for tree in trees for node in ast.walk(tree) for verb in verbs_of(node)}


def verbs_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        named = [keyword.value for keyword in node.keywords if keyword.arg == "verb"]
        first = node.args[:1] if isinstance(node.func, ast.Attribute) and node.func.attr == "_commit" else []
        yield from (value.value for value in [*named, *first] if isinstance(value, ast.Constant))
    if isinstance(node, ast.FunctionDef) and node.name == "_verb":
        returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
        for value in returned:
            chosen = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            yield from (str(choice.value) for choice in chosen if isinstance(choice, ast.Constant))


def test_every_commit_has_a_point_before_and_after() -> None:
    verbs = committed_verbs()
    assert {"claim", "checkpoint", "publish", "rewind", "rewind_table", "send", "repair"} <= verbs
    points = {point.value for point in (*POINTS, *OF_REPAIRS)}
    missing = {f"{verb}.{when}_commit" for verb in verbs for when in ("before", "after")} - points
    assert not missing, f"commits without a fail point: {sorted(missing)}"


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_point_is_in_the_matrix(graph: str) -> None:
    cells = {(cell.values[1], cell.values[2]) for cell in matrix() if cell.values[0] == graph}
    assert cells == {(point, action) for point in points_of(graph) for action in actions(point)}


def test_every_point_of_a_repair_is_in_its_matrix() -> None:
    cells = list(repairs_matrix())
    every = {(point, action) for point in OF_REPAIRS for action in actions(point)}
    assert {cell.values[:2] for cell in cells} == every
    assert {cell.values[0] for cell in cells if not cell.marks and cell.values[1] == "kill"} == set(OF_REPAIRS)


@pytest.mark.seed("V170")
def test_the_matrix_has_more_cells_than_the_paper_has_tests() -> None:
    cells = [cell.id for cell in matrix()]
    assert len(set(cells)) == len(cells) > 200


@pytest.mark.seed("T3", "T6")
def test_the_default_run_kills_where_something_else_is_left_and_loses_a_reply_of_each_kind() -> None:
    default = {cell.values[1:] for cell in matrix() if not cell.marks}
    assert default == {*((point, "kill") for point in KILLED), *((point, "lost_reply") for point in REPLIES)}
    assert {"claim", "checkpoint", "publish", "rewind", "rewind_table", "compact", "progress"} == {
        point.value.removesuffix(".after_commit") for point in KILLED if point.value.endswith(".after_commit")
    }, "what a commit has left"
    commits = {point for point in POINTS if point.value.endswith(".after_commit")}
    assert commits - {*KILLED, *REPLIES} == SELDOM, (
        "a new commit is in the default run, or is said to leave nothing new"
    )
    assert commits.issuperset(REPLIES)
