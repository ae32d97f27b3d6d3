"""Names of columns that SQL, Spark's tasks and Arrow would take for something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import drainmark as dm
from drainmark.jobs.frames.names import _RenamedTask, quoted
from drainmark.jobs.state.aggregations.aggregation import argument_columns
from drainmark.jobs.tasks.layout import Layout


def test_a_backtick_is_doubled() -> None:
    assert quoted(["a.b", "a`b"]) == ["`a.b`", "`a``b`"]


def test_a_task_gets_rows_under_their_own_names() -> None:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    given: Any = pa.RecordBatch.from_pydict({"_column_0": [1], "n": [2]})
    (found,) = _RenamedTask(task, ("a.b", "n"))(iter([given]))
    assert found.to_pydict() == {"a.b": [1], "n": [2]}


@pytest.mark.parametrize("name", [".a", "[0]", "[1]", "a.b"])
def test_rows_are_sorted_by_a_column_that_looks_like_a_path(name: str) -> None:
    rows = pa.table({"first": [1, 2, 3], name: [2, 3, 1]})
    assert Layout(cluster_by=(name,)).of_rows(rows)[name].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("argument", "column"), [("`a.b`", "a.b"), ("s.x", "s"), ("`s`.x", "s"), ("n", "n"), ("n n", "n n")]
)
def test_a_window_keeps_the_column_that_a_value_reads(argument: str, column: str) -> None:
    assert argument_columns([dm.sum(argument)], ["a", "a.b", "s", "n", "n n"], []) == [column]
