"""Completeness of the matrix: each commit has a fail point before and after it, and each fail point has its tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from architecture.tree import ROOT
from graphs import GRAPHS
from test_golden_matrix import KILLED, POINTS, REPLIES, SIMULATED, actions_of, matrix, points_of
from test_repairs_recover import OF_REPAIRS

from drainmark.jobs.failpoints import ErasePoint

COMMITTING = (
    "checkpoints/checkpoint_table", "delta/managed_table", "delta/commits",
    "delta/autonomous_tables", "delta/health/damaged_tables", "sinks/database_tables", "sinks/file_tables",
)  # fmt: skip
"""The modules of `resources` that commit through the one guarded function."""


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
    points = {point.value for point in (*POINTS, *OF_REPAIRS, *ErasePoint)}  # test_erase.py kills at the last ones
    missing = {f"{verb}.{when}_commit" for verb in verbs for when in ("before", "after")} - points
    assert not missing, f"commits without a fail point: {sorted(missing)}"


@pytest.mark.parametrize("graph", [graph for graph in GRAPHS if graph not in SIMULATED])
def test_every_point_is_in_the_matrix(graph: str) -> None:
    cells = {(cell.values[1], cell.values[2]) for cell in matrix() if cell.values[0] == graph}
    assert cells == {(point, action) for point in points_of(graph) for action in actions_of(graph, point)}


@pytest.mark.seed("V170")
def test_the_matrix_has_more_cells_than_the_paper_has_tests() -> None:
    cells = [cell.id for cell in matrix()]
    assert len(set(cells)) == len(cells) > 200


@pytest.mark.seed("T3", "T6")
def test_the_default_run_kills_and_loses_replies_where_no_simulation_does() -> None:
    default = {cell.values[1:] for cell in matrix() if not cell.marks}
    assert default == {*((point, "kill") for point in KILLED), *((point, "lost_reply") for point in REPLIES)}
