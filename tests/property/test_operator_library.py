"""Every configuration of every operator of the catalogue against plain Python: any grouping, states in memory and in
files, small groups and groups that Spark writes, rewound to the middle and replayed (V94, V138–V154, E8, N27)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import rows, run_once
from operator_cases import CASES, Case, streams
from triggers import add_file, as_text, content, home, opened

import drainmark as dm
from drainmark.jobs.operators.catalogue import entries
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 8
BACK_TO = 3
REGION = "library/events"
ALL = [content(number) for number in range(FILES)]


@dataclass(frozen=True)
class Way:
    """Sizes: files in a group at first, and after the rewind; bytes up to which groups and states are in memory."""

    size: int
    again: int
    state_bytes: int
    group_bytes: int
    checkpoints: str = "non-blocking"


WAYS = [
    pytest.param(Way(FILES, FILES, 2**25, 2**23), id="all, in memory"),
    pytest.param(Way(5, FILES, 2**25, 2**23), id="some, in memory", marks=pytest.mark.slow),
    pytest.param(Way(FILES, 2, 0, 0), id="all, in files, written by Spark", marks=pytest.mark.slow),
    pytest.param(Way(1, FILES, 0, 2**23), id="one, in files", marks=pytest.mark.slow),
    pytest.param(Way(2, 3, 2**25, 0, "blocking"), id="some, written by Spark, blocking", marks=pytest.mark.slow),
]

ELSEWHERE = {
    "aggregate": "test_grouping.py",
    "apply-changes": "test_applied_changes.py",
    "aggregate over changes": "test_retracting_aggregates.py",
    "as-of join": "test_as_of_joins.py",
    "custom": "test_custom_states.py",
    "database-append": "test_outer_sinks.py",
    "database-upsert": "test_outer_sinks.py",
    "delta-append": "test_grouping.py",
    "delta-overwrite": "test_outer_sinks.py",
    "delta-upsert": "test_grouping.py",
    "event-time windows": "test_windowed_aggregates.py",
    "file-sink": "test_outer_sinks.py",
    "filter": "test_custom_states.py",
    "functor": "test_grouping.py",
    "handler": "test_handlers.py",
    "lookup": "test_operators.py",
    "numbered windows": "test_windowed_aggregates.py",
    "parallel map": "test_permits.py",
    "per-trigger": "test_grouping.py",
    "quarantine": "test_refused_rows.py",
    "session windows": "test_windowed_aggregates.py",
    "slices": "test_periodic.py",
    "sliding aggregate": "test_sliding_windows.py",
    "sliding aggregate of every row": "test_windowed_aggregates.py",
    "source": "test_grouping.py",
    "sql": "test_operators.py",
    "trailing windows": "test_windowed_aggregates.py",
}
"""Kinds whose oracle is in a test file of their own."""

Found = dict[str, list[list[str]]]
"""By case, the rows of each file's state, as sorted texts."""


@dataclass(frozen=True)
class Course:
    first: Found
    rewound: Found
    replayed: Found
    sizes: list[int]


def declare(events: Any) -> None:
    read = streams(events)
    for case in CASES:
        dm.sink(case.declare(read, case.name), dm.DeltaAppend(case.name))


def found_in(place: Any) -> Found:
    """Return the rows that each file's state added to each sink, in the order of the files."""
    ids = [number for _, number in sorted(place.history(REGION).newest_by_uri().items())]
    found: Found = {}
    for case in CASES:
        by_id: dict[int, list[str]] = {number: [] for number in ids}
        for row in rows(place, REGION, case.name):
            by_id[row["_sequence_id"]].append(as_text(row, ids=False))
        found[case.name] = [sorted(texts) for texts in by_id.values()]
    return found


@pytest.fixture(scope="module", params=WAYS)
def course(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine
) -> Iterator[Course]:
    """Run all cases as one application: all files, back to the middle, and on again; yield the results."""
    way: Way = request.param
    folder = tmp_path_factory.mktemp("library")
    for number in range(FILES):
        add_file(folder / "inbox", number)
    application = opened(
        "library", folder / "inbox", declare, checkpoints=way.checkpoints, group_timeout=dt.timedelta(minutes=14)
    )
    settled = {"small_group_bytes": way.group_bytes}
    with pytest.MonkeyPatch.context() as patch, home(folder / "home", engine, **settled) as place:
        patch.setattr(keyed_state, "MEMORY_STATE_BYTES", way.state_bytes)
        patch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
        reports = run_once(place, application, max_group=way.size)
        first = found_in(place)
        rewind(place, REGION, BACK_TO, 10_000)
        rewound = found_in(place)
        run_once(place, application, max_group=way.again)
        yield Course(first, rewound, found_in(place), [report.triggers for report in reports])


def wanted(case: Case, files: int) -> list[list[str]]:
    return [sorted(map(as_text, added)) for added in case.oracle(ALL[:files])]


@pytest.mark.seed("V140")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_does_what_plain_python_does_whatever_the_grouping(course: Course, case: Case) -> None:
    assert course.first[case.name] == wanted(case, FILES)
    assert course.rewound[case.name] == wanted(case, BACK_TO)
    assert course.replayed[case.name] == wanted(case, FILES)


def test_groups_had_the_size_asked_for(course: Course, request: pytest.FixtureRequest) -> None:
    """No operator of the library forces groups of one."""
    assert max(course.sizes) == request.node.callspec.params["course"].size


@pytest.mark.seed("T5")
def test_every_configuration_of_the_catalogue_has_an_oracle() -> None:
    """A new operator costs a case here, or a test file of its own."""
    catalogued = {
        (entry.kind, configuration)
        for entry in entries()
        for configuration in entry.configurations
        if entry.kind not in ELSEWHERE
    }
    assert {(case.kind, case.configuration) for case in CASES} == catalogued
    files = {path.name for path in Path(__file__).parents[1].rglob("test_*.py")}
    assert set(ELSEWHERE.values()) <= files
    assert set(ELSEWHERE) <= {entry.kind for entry in entries()}


def test_every_oracle_has_something_to_say() -> None:
    assert [case.name for case in CASES if not any(case.oracle(ALL))] == []
