"""Every window of `dm.aggregate` against plain Python: any grouping, states in files, rewinding (V5, V154, H20, K16).

Whole runs with real tables come first; then random rows test the operator alone.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import LONG_AGO, rows, run_once
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triggers import home
from window_bench import Bench
from window_cases import CASES, NO_NUMBERS, NOON, SCHEMA, Case, cell, content
from window_oracles import Told, sliding, trailing

import drainmark as dm
from drainmark.jobs.operators.catalogue import kinds
from drainmark.jobs.operators.windows.numbered_windows import BEGAN
from drainmark.jobs.operators.windows.retracting_aggregate import RetractingAggregate
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.operators.windows.sliding import SlidingAggregate
from drainmark.jobs.operators.windows.window import Delta, EventTime, Marked, Rows
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.workplace.workplace import Opened, open_application
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 7
REGION = "windows/events"
Row = dict[str, Any]
EVERY_CASE = [case for cases in CASES.values() for case in cases]


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    for number in range(FILES):
        path = folder / f"{number:04d}.csv"
        path.write_text("".join(",".join(map(cell, row.values())) + "\n" for row in content(number)))
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def opened(inbox: Path, cases: list[Case], **region: Any) -> Opened:
    with dm.application("windows") as declared:

        @dm.consistent(trigger="operator-driven", **region)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        for case in cases:
            found = case.declare(events)
            dm.sink(found, dm.DeltaAppend(case.name))
            if case.window_keys:
                dm.sink(found, dm.DeltaUpsert(f"{case.name}_now", keys=[*case.keys, *case.window_keys]))
            if case.has_late:
                dm.sink(found["late"], dm.DeltaAppend(f"{case.name}_late"))
    return open_application(dm.build_application(declared))


def plain(found: list[Row]) -> list[str]:
    def text(row: Row) -> str:
        left_out = ("_sequence_id", "_position", "source_file")
        rounded = {
            name: float(f"{value:.9g}") if isinstance(value, float) else str(value)
            for name, value in row.items()
            if name not in left_out
        }
        return repr(sorted(rounded.items()))

    return sorted(text(row) for row in found)


def upserted(case: Case, told: Told) -> list[Row]:
    now = {}
    for row in itertools.chain.from_iterable(told.emitted):
        now[tuple(row[key] for key in (*case.keys, *case.window_keys))] = row
    return list(now.values())


def assert_golden(place: Any, cases: list[Case], files: int) -> None:
    data = [content(number) for number in range(files)]
    for case in cases:
        told = case.oracle(data)
        emitted = list(itertools.chain.from_iterable(told.emitted))
        assert plain(rows(place, REGION, case.name)) == plain(emitted), case.name
        if case.window_keys:
            assert plain(rows(place, REGION, f"{case.name}_now")) == plain(upserted(case, told)), case.name
        if case.has_late:
            late = plain(list(itertools.chain.from_iterable(told.late)))
            assert plain(rows(place, REGION, f"{case.name}_late")) == late, case.name


@dataclass(frozen=True)
class Way:
    """Sizes: files in a group; bytes up to which states are in memory; bytes up to which groups come back by Arrow."""

    size: int
    state_bytes: int = keyed_state.MEMORY_STATE_BYTES
    group_bytes: int = 8 << 20
    checkpoints: str = "non-blocking"


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(Way(3), marks=pytest.mark.slow),
        pytest.param(Way(1), marks=pytest.mark.slow),
        pytest.param(Way(2, state_bytes=0), marks=pytest.mark.slow),
        pytest.param(Way(FILES, state_bytes=0, group_bytes=0, checkpoints="blocking"), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "kind", ["event", *(pytest.param(kind, marks=pytest.mark.slow) for kind in CASES if kind != "event")]
)
def test_windows_are_the_same_whatever_the_grouping_and_can_be_rewound(  # noqa: PLR0917
    tmp_path: Path, inbox: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, kind: str, way: Way
) -> None:
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", way.state_bytes)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
    cases = CASES[kind]
    application = opened(inbox, cases, checkpoints=way.checkpoints)
    with home(tmp_path / "home", engine, small_group_bytes=way.group_bytes) as place:
        reports = run_once(place, application, max_group=way.size)
        assert max(report.triggers for report in reports) == way.size
        assert_golden(place, cases, FILES)
        rewind(place, REGION, 3, 10_000)
        assert_golden(place, cases, 3)
        run_once(place, application, max_group=FILES - way.size + 1)
        assert_golden(place, cases, FILES)


@pytest.fixture(scope="module")
def data() -> list[list[Row]]:
    return [content(number) for number in range(FILES)]


def test_the_rows_of_the_cases_go_everywhere(data: list[list[Row]]) -> None:
    """The rows that other tests compare are not empty: windows close, some stay open, rows are late, an id has none."""
    assert any(not rows for rows in data)
    for case in EVERY_CASE:
        told = case.oracle(data)
        assert any(told.emitted), case.name
        assert any(told.late) == case.has_late, case.name
        if case.has_late:
            assert told.open, case.name


def configuration_of(operator: Any) -> str:
    """Return the catalogue's name for the way in which an operator is declared."""
    window, emit = operator.window, str(operator.emission.emit)
    if isinstance(window, EventTime):
        kind = "tumbling" if window.is_tumbling else "overlapping"
        return f"{kind}, {'count trigger' if window.count_trigger else emit}"
    if isinstance(window, Delta) and window.is_sliding:
        return f"{'time' if isinstance(window.size, dt.timedelta) else 'delta'}, {emit}"
    labels = {Delta: "delta, ", Marked: "until, ", Rows: "" if emit == "row" else "rows, "}
    return f"{labels.get(type(window), '')}{emit}"


@pytest.mark.seed("T5")
def test_every_configuration_of_the_windows_has_an_oracle() -> None:
    operators = [case.operator() for case in EVERY_CASE]
    tried = {(type(one), configuration_of(one)) for one in operators if hasattr(type(one), "configurations")}
    others = (Aggregate, RetractingAggregate, SlidingAggregate)
    windows = {cls for cls in kinds() if issubclass(cls, KeyedValues) and not issubclass(cls, others)}
    assert {cls for cls, _ in tried if cls in windows} == windows
    assert {(cls, name) for cls, name in tried if cls in windows} == {
        (cls, name) for cls in windows for name in cls.configurations
    }


def costly(case: Case) -> bool:
    """Say whether the default run leaves a case out, because it differs little from another."""
    return not case.keys or case.name in {
        "session_strict", "tumbling_rows_change", "tumbling_delta_change", "tumbling_until_change",
        "tumbling_delta_of_time", "tumbling_time_change", "tumbling_time_closed", "hopping_time_change",
        "tumbling_time_bounded", "session_bounded", "session_keyless", "hopping_time_closed",
        "sliding_delta_row", "sliding_delta_change", "tumbling_delta_of_doubles", "sliding_rows_row",
        "tumbling_until_closed", "tumbling_delta_closed", "sliding_delta_of_doubles",
    }  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if costly(case) else (), id=case.name) for case in EVERY_CASE],
)
def test_each_id_emits_what_plain_python_does_and_only_open_windows_are_kept(
    case: Case, data: list[list[Row]], engine: SparkEngine
) -> None:
    """Rows in are rows in windows plus late rows; the state holds no closed window (V5, H20)."""
    assert_told(Bench(engine.session, case), case, data, [4, FILES - 4])


def assert_told(bench: Bench, case: Case, data: list[list[Row]], parts: list[int]) -> None:
    told, found = case.oracle(data), bench.run(data, parts)
    for number, wanted in enumerate(told.emitted):
        assert plain(found.emitted[number]) == plain(wanted), (case.name, number)
    for number, wanted in enumerate(told.late):
        assert plain(found.late[number]) == plain(wanted), (case.name, number)
    if case.has_late:
        assert found.open == told.open
        counted = [row["late_rows"] for row in found.watermark]
        assert counted == [sum(map(len, told.late))] or (counted == [] and not any(told.late))


MOMENTS = st.none() | st.integers(0, 60).map(lambda minutes: NOON + dt.timedelta(minutes=minutes))
ROWS = st.fixed_dictionaries({
    "user": st.sampled_from(["ann", "bob", None]),
    "n": st.none() | st.integers(0, 5),
    "x": st.integers(0, 1000).map(lambda number: number / 7),
    "at": MOMENTS,
    "ends": st.sampled_from([True, False, None]),
    "km": st.none() | st.integers(0, 40),
    "level": st.none() | st.sampled_from([*NO_NUMBERS, 0.0, 4.5, 9.5, 14.0, 1e300, -1e300]),
})  # fmt: skip
SOME_CASES = [case for case in EVERY_CASE if not case.name.endswith("keyless")]
QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@st.composite
def triggers(draw: st.DrawFn) -> tuple[list[list[Row]], list[int]]:
    """Draw a few files of random rows, and the sizes of consecutive groups of them."""
    files = draw(st.lists(st.lists(ROWS, max_size=6), min_size=2, max_size=5))
    cuts = sorted(draw(st.sets(st.integers(1, len(files) - 1), max_size=2)))
    return files, [after - before for before, after in zip([0, *cuts], [*cuts, len(files)], strict=True)]


def check_random(case: Case, drawn: tuple[list[list[Row]], list[int]], engine: SparkEngine) -> None:
    """Assert that emitted rows are the oracle's, and that each id's state is the same as in groups of one."""
    files, parts = drawn
    bench, ones = Bench(engine.session, case), Bench(engine.session, case, is_local=True)
    assert_told(bench, case, files, parts)
    assert_told(ones, case, files, [1] * len(files))
    for number in range(1, len(files) + 1):
        assert plain(bench.state_at(number)) == plain(ones.state_at(number)), (case.name, number)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tumbling_delta_closed", "hopping_time_closed", "session"])
@given(drawn=triggers())
@settings(max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=QUIET)
def test_random_rows_in_any_grouping(name: str, drawn: tuple[list[list[Row]], list[int]], engine: SparkEngine) -> None:
    check_random(next(case for case in EVERY_CASE if case.name == name), drawn, engine)


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME_CASES, ids=lambda case: case.name)
@given(drawn=triggers())
@settings(max_examples=20, deadline=None, database=None, suppress_health_check=QUIET)
def test_many_random_rows_in_any_grouping(
    case: Case, drawn: tuple[list[list[Row]], list[int]], engine: SparkEngine
) -> None:
    check_random(case, drawn, engine)


def events_of(*rows: tuple[int, int]) -> list[Row]:
    """Return rows of one user, given by minute after noon and number."""
    return [{"user": "ann", "n": n, "x": 0.0, "at": NOON + dt.timedelta(minutes=minute), "ends": None, "km": None,
             "level": None}
            for minute, n in rows]  # fmt: skip


@pytest.mark.parametrize(
    ("is_local", "parts"),
    [
        pytest.param(
            is_local, parts, id=f"{'here' if is_local else 'by Spark'}-{parts}",
            marks=() if (is_local, parts) in ((True, [3]), (False, [1, 2])) else pytest.mark.slow,
        )
        for is_local in (True, False) for parts in ([1, 1, 1], [3], [1, 2])
    ],
)  # fmt: skip
def test_the_first_row_of_merged_sessions_is_the_first_by_position(
    engine: SparkEngine, is_local: bool, parts: list[int]
) -> None:
    """Two sessions of one file become one: their rows have the same id, and only their positions differ."""
    files = [events_of((8, 1), (0, 2)), events_of((4, 3)), events_of((59, 4))]
    case = next(case for case in EVERY_CASE if case.name == "session")
    found = Bench(engine.session, case, is_local=is_local).run(files, parts)
    (told,) = found.emitted[2]
    assert (told["rows"], told["oldest"], told["newest"]) == (3, 1, 3)
    assert plain([told]) == plain(case.oracle(files).emitted[2])


@pytest.mark.parametrize(
    ("kind", "bits", "width"),
    [
        ("int", 32, 10),
        pytest.param("int", 32, 2**33, marks=pytest.mark.slow),
        pytest.param("tinyint", 8, 200, marks=pytest.mark.slow),
        pytest.param("bigint", 64, 10, marks=pytest.mark.slow),
        pytest.param("bigint", 64, 0.5, marks=pytest.mark.slow),
    ],
)
def test_differences_may_be_beyond_the_type_of_the_column(
    engine: SparkEngine, kind: str, bits: int, width: float
) -> None:
    most = 2 ** (bits - 1) - 1
    files = [[{**row, "km": km} for row, km in zip(events_of(*[(0, n) for n in range(len(kms))]), kms, strict=True)]
             for kms in ([-most - 1, -1], [0, most - 8, most - 9], [None, most])]  # fmt: skip
    (case,) = (case for case in EVERY_CASE if case.name == "sliding_delta_row")
    more = {"emit": "row"}
    case = dataclasses.replace(case, more=more, window=lambda: dm.sliding("km", delta=width),
                               oracle=lambda files: sliding(files, ["user"], "row", trailing("km", width)))  # fmt: skip
    bench = Bench(engine.session, case, schema=SCHEMA.replace("km bigint", f"km {kind}"))
    assert_told(bench, case, files, [1, 2])


def test_a_window_that_an_older_version_began_with_no_number_goes_on(engine: SparkEngine) -> None:
    """Released versions kept the NaN of a first row as the value to compare with, and such a window never ended."""
    (case,) = (case for case in EVERY_CASE if case.name == "tumbling_delta_of_doubles")
    files = [[{**row, "level": level} for row in events_of((0, 1))] for level in (math.nan, 0.0, 9.0, 9.5)]
    bench = Bench(engine.session, case)
    bench.run(files[:1], [1])
    kept = bench.states[""]
    place = kept.column_names.index(BEGAN)
    bench.states[""] = kept.set_column(place, BEGAN, pa.array([math.nan]))
    found = bench.go_on(files[1:], 2)
    assert [plain(found.emitted[number]) for number in range(1, 4)] == [*map(plain, case.oracle(files).emitted[1:])]


@pytest.mark.parametrize("is_kept", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["kept", "not kept"])
@pytest.mark.parametrize("name", [pytest.param("session", marks=pytest.mark.slow), "tumbling_time_closed"])
def test_a_larger_lateness_opens_no_closed_window_again(engine: SparkEngine, name: str, is_kept: bool) -> None:
    """Other code goes on with the present watermark, even if older claims kept none (H20)."""
    bench = Bench(engine.session, next(case for case in EVERY_CASE if case.name == name))
    files = [events_of((0, 1)), events_of((40, 2)), events_of((1, 3), (41, 4)), events_of((180, 5))]
    bench.run(files[:2], [2])
    stood = bench.states["watermark"]["watermark"][0].as_py()
    if not is_kept:
        bench.states["watermark"] = bench.states["watermark"].drop_columns(["watermark"])
    bench.operator = dataclasses.replace(
        bench.operator,
        emission=dataclasses.replace(bench.operator.emission, lateness=dt.timedelta(minutes=50 if is_kept else 0)),
    )
    found = bench.go_on(files[2:], 3)
    assert [row["n"] for row in found.late[2]] == [3]
    (mark,) = found.watermark
    assert mark["watermark"] > stood
    assert mark["late_rows"] == 1


@pytest.mark.slow
def test_windows_survive_failures_around_their_commits(engine: SparkEngine) -> None:
    """Emitted rows, late rows and the state are those of the golden run, wherever it fails (K16, V5)."""
    files = {
        f"{number}.csv": "".join(f"{row['user'] or ''},{cell(row['n'])},{cell(row['at'])}\n" for row in content(number))
        for number in range(FILES)
        if content(number)
    }
    app = Path(__file__).parents[1] / "recovery" / "apps" / "windowed.py"
    points = ["checkpoint.after_commit", "publish.before_commit", "rewind_table.after_commit"]
    (proof,) = dm.testing.assert_exactly_once(app, files, fail_points=points, groupings=(1,), engine=engine)
    assert proof.failures
