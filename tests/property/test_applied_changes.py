"""`dm.apply_changes` against a dictionary and a list of intervals: any grouping, disorder, ties, replays, rewinds."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from change_cases import Course, Files, is_bad, log, newest, plain, versions

import drainmark as dm
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 9
SHOWN = ["a", "b", "n", "x", "y"]
DELETES = "op = 'd'"
MINUTES = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class Case:
    options: dict[str, Any]
    oracle: Callable[[Files], list[list[dict[str, Any]]]]
    truncates: float = 0.0


CASES = {
    "scd 1": Case({"columns": SHOWN}, lambda files: newest(files, SHOWN)),
    "scd 1 truncates": Case(
        {"columns": SHOWN, "apply_as_truncates": "op = 't'"}, lambda files: newest(files, SHOWN), truncates=0.15
    ),
    "scd 1 within ids": Case({"columns": SHOWN, "within": 1}, lambda files: newest(files, SHOWN, 1)),
    "scd 1 within duration": Case(
        {"columns": SHOWN, "within": MINUTES, "sequence_by": "at"},
        lambda files: newest(files, SHOWN, MINUTES),
    ),
    "scd 2": Case({"columns": ["a", "b", "x", "y"], "stored_as_scd_type": 2},
                  lambda files: versions(files, ["a", "b", "x", "y"], ["x", "y"])),
    "scd 2 tracked": Case(
        {"columns": ["a", "b", "x", "y"], "stored_as_scd_type": 2, "track_history_columns": ["x"]},
        lambda files: versions(files, ["a", "b", "x", "y"], ["x"]),
    ),
}  # fmt: skip


def operator_of(case: Case) -> Any:
    options = {"keys": ["a", "b"], "sequence_by": "n", "apply_as_deletes": DELETES, **case.options}
    with dm.application("applied"):
        return dm.apply_changes("changes", **options).operator


def in_groups(chance: random.Random, ids: list[int]) -> list[list[int]]:
    """Return ids cut into groups."""
    groups: list[list[int]] = []
    for number in ids:
        if not groups or chance.random() < 0.5:
            groups.append([])
        groups[-1].append(number)
    return groups


@pytest.mark.seed("AC1", "AC2")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_any_grouping_gives_what_plain_python_gives(engine: SparkEngine, name: str, seed: int) -> None:
    case, chance = CASES[name], random.Random(seed)
    files = log(chance, FILES, truncates=case.truncates)
    wanted = case.oracle(files)
    ids = [2 * number + 1 for number in range(FILES)]  # a failed attempt leaves a gap
    course = Course(engine.session, operator_of(case))
    for group in in_groups(chance, ids):
        course.go({number: files[ids.index(number)] for number in group})
    for number, rows, expected in zip(ids, files, wanted, strict=True):
        assert plain(course.out[number]) == plain(expected), number
        assert course.refused[number] == sum(map(is_bad, rows))
    back = chance.randrange(FILES)
    course.rewind(ids[back])
    for group in in_groups(chance, ids[back + 1 :]):
        course.go({number: files[ids.index(number)] for number in group})
    assert [plain(course.out[number]) for number in ids] == [plain(rows) for rows in wanted]
