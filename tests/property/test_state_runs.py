"""A keyed state in runs equals a plain dictionary, after any flushes, merges, crashes, rewinds and `gc`."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructType

from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.protocol.records.manifest import Image, StagedFile
from drainmark.jobs.state import keyed_state, run_making, runs
from drainmark.jobs.state.due_rows import DueSpan, hashes_due
from drainmark.jobs.state.keyed_rows import RowsPerKey, rows_of_keys
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.jobs.state.run_files import KEY_HASH, ROWS_A_GROUP, RunIndex, hashes_here, key_hash
from drainmark.jobs.state.runs import Run, RunMerge, due, image_of, runs_of
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.tasks.sorted_runs import RunWriter
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.spark.session import SparkEngine

SCHEMA = (
    StructType()
    .add("k", StringType())
    .add("x", DoubleType())
    .add("n", LongType())
    .add(GONE, BooleanType())
    .add("_sequence_id", LongType())
)
ARROW = pa.schema(
    [("k", pa.string()), ("x", pa.float64()), ("n", pa.int64()), (GONE, pa.bool_()), ("_sequence_id", pa.int64())]
)
KEYS = [(k, x) for k in (None, "a", "b", "c", "") for x in (None, 0.0, math.nan, 2.5)]

Key = tuple[str | None, float | None]
groups = st.dictionaries(st.integers(0, len(KEYS) - 1), st.integers(0, 9) | st.none(), max_size=8)
steps = st.lists(
    st.tuples(st.just("group"), groups)
    | st.tuples(st.sampled_from(["crash", "reload", "collect"]), st.none())
    | st.tuples(st.just("rewind"), st.integers(0, 5)),
    min_size=4,
    max_size=14,
)


def told(key: Key) -> str:
    return repr(key)  # so that a NaN is equal to itself


@dataclass
class Home:
    """The files that a region commits for one state, and the plain dictionary at each id."""

    root: Path
    engine: SparkEngine
    looked_up_by: tuple[str, ...]
    files: list[StagedFile] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    at: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    last: int = 0
    next_id: int = 1
    merges: int = 0
    state: KeyedState = field(init=False)

    def __post_init__(self) -> None:
        self.load()

    def load(self) -> None:
        self.state = KeyedState.load(
            table="state/app/counts",
            stored=ManagedTable(self.root, "app/start").files,
            keys=("k", "x"),
            schema=SCHEMA,
            image=self.images[-1] if self.images else None,
            live=self.files,
            looked_up_by=self.looked_up_by,
        )

    def group(self, changes: dict[int, int | None], *, crashes: bool = False) -> None:
        number, self.next_id = self.next_id, self.next_id + 1
        rows = pa.Table.from_pylist(
            [
                {"k": KEYS[key][0], "x": KEYS[key][1], "n": n, GONE: n is None, "_sequence_id": number}
                for key, n in changes.items()
            ],
            schema=ARROW,
        )
        before = len(self.state.runs)
        frozen = self.state.prepare(number, (), rows)
        staging = Staging(self.root, 1, uuid.uuid4().hex)
        written = self.state.checkpoint(frozen, staging, self.engine.session)
        if crashes:  # everything is written, but nothing is committed
            self.load()
            return
        self.files += written.files
        self.images += [written.image] if written.image else []
        self.state.checkpointed(written)
        self.merges += written.image is not None and 0 < len(self.state.runs) <= before
        now = dict(self.at[self.last])
        for key, n in changes.items():
            now.pop(told(KEYS[key]), None)
            now |= {told(KEYS[key]): n} if n is not None else {}
        self.at[number], self.last = now, number

    def rewind(self, back: int) -> None:
        ids = sorted(self.at)
        self.last = ids[max(0, len(ids) - 1 - back)]
        self.at = {number: found for number, found in self.at.items() if number <= self.last}
        self.files = [file for file in self.files if (file.last_id or 0) <= self.last]
        self.images = [image for image in self.images if image.at <= self.last]
        self.load()

    def collect(self) -> None:
        """Delete the files that no image names any more, as `gc` does, except those that the table shows."""
        named = {file.path for file in self.files} | {file.path for image in self.images for file in image.files}
        for path in (self.root / "_staged").rglob("*.parquet"):
            if str(path.relative_to(self.root)) not in named:
                path.unlink()

    def check(self) -> None:
        wanted = self.at[self.last]
        for asked in (KEYS, KEYS[3:5], KEYS[-1:]):
            keys = pa.Table.from_pylist([{"k": k, "x": x} for k, x in asked], schema=pa.schema(list(ARROW)[:2]))
            frame = self.engine.session.createDataFrame(keys, StructType(SCHEMA.fields[:2]))
            by = self.looked_up_by
            found = self.state.look_up(frame.select(*by, key_hash(by)).toArrow())
            own = {told(key): wanted[told(key)] for key in asked if told(key) in wanted}
            if by == ("k",):  # all rows that agree in this column
                own = {told(key): wanted[told(key)] for key in KEYS if told(key) in wanted and key[0] in dict(asked)}
            assert values(found) == own
            if frame.count() == 1:
                self.check_due(frame.select(*by, key_hash(by)).toArrow(), own)
        whole = self.state.current(self.engine.session, None) if self.state.files else None
        assert values(whole.toArrow() if whole is not None else None) == wanted

    def check_due(self, asked: pa.Table, own: dict[str, int]) -> None:
        """Assert that rows due by `n` are found beside the requested keys, and no row that was replaced or removed."""
        wanted = self.at[self.last]
        for above, upto in ((None, 4), (2, 6), (6, 6), (None, None)):
            due = self.state.in_files.due(self.state.run_files, self.state.young, DueSpan("n", above, upto))
            assert due is not None
            found = values(self.state.look_up(asked, due))
            is_due = {
                key: n for key, n in wanted.items() if upto is not None and n <= upto and (above is None or n > above)
            }
            assert own | is_due == {key: found[key] for key in own | is_due}
            assert found.items() <= wanted.items()


def values(rows: pa.Table | None) -> dict[str, int]:
    found = [(told((row["k"], row["x"])), row["n"]) for row in (rows.to_pylist() if rows is not None else ())]
    assert len(found) == len(dict(found)), "a key twice"
    return dict(found)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each second group flush, and let runs merge from two rows on."""
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", 0)
    monkeypatch.setattr(keyed_state, "_IMAGE_CHANGE_FILES", 1)
    monkeypatch.setattr(runs, "_LOWEST", 2)
    monkeypatch.setattr("drainmark.jobs.tasks.sorted_runs.ROWS_A_GROUP", 2)


@pytest.fixture(params=["in the checkpoint", "beside the groups"])
def merging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the place in which runs are merged, and set it up."""
    if request.param == "beside the groups":
        monkeypatch.setattr(run_making, "AT_ONCE_BYTES", 0)
        monkeypatch.setattr(run_making, "_MOST_RUNS", 5)
    return str(request.param)


@pytest.mark.seed("H29", "V160")
@pytest.mark.parametrize(
    ("merging", "by"),
    [
        pytest.param("in the checkpoint", ("k", "x"), id="in the checkpoint-by the key"),
        pytest.param("in the checkpoint", ("k",), id="in the checkpoint-by a part of the key", marks=pytest.mark.slow),
        pytest.param("beside the groups", ("k", "x"), id="beside the groups-by the key", marks=pytest.mark.slow),
        pytest.param("beside the groups", ("k",), id="beside the groups-by a part of the key"),
    ],
    indirect=["merging"],
)
@given(steps=steps)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_is_the_plain_dictionary(
    engine: SparkEngine, tiny: None, merging: str, by: tuple[str, ...], steps: list[tuple[str, Any]]
) -> None:
    with TemporaryDirectory() as folder:
        home = Home(Path(folder), engine, by)
        for what, value in steps:
            if what == "group":
                home.group(value)
            elif what == "crash":
                home.group({0: 1, 7: None, 12: 3}, crashes=True)
            elif what == "rewind":
                home.rewind(value)
            elif what == "collect":
                home.load()  # a running merge belongs to this owner, and `gc` takes none of its files
                home.collect()
            else:
                home.load()
        home.check()


@pytest.mark.parametrize(
    "merging", ["in the checkpoint", pytest.param("beside the groups", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.seed("H29")
def test_a_long_history_is_merged_in_tiers(engine: SparkEngine, tiny: None, merging: str, tmp_path: Path) -> None:
    home = Home(tmp_path, engine, ("k", "x"))
    for number in range(16):
        home.group({(number * 7 + place) % len(KEYS): number if place else None for place in range(3)})
    home.check()
    assert home.merges, "no merge took place"
    assert len(home.state.runs) <= 6
    home.load()
    home.collect()
    home.rewind(9)
    home.check()


@pytest.mark.seed("H29")
def test_after_a_group_that_is_too_large_for_the_memory_keys_are_looked_up(
    engine: SparkEngine, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes become a run at once: the next group, or the run after a kill, does not read all of the state."""
    monkeypatch.setattr(keyed_state, "_IMAGE_CHANGE_FILES", 64)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 2)
    monkeypatch.setattr(keyed_state, "YOUNG_ROWS", 3)
    home = Home(tmp_path, engine, ("k", "x"))
    home.group(dict.fromkeys(range(len(KEYS)), 0))
    home.group({0: 1})
    for number, keys in enumerate((5, 2, 7), start=2):
        home.group(dict.fromkeys(range(keys), number))
        assert home.state.can_look_up
    home.load()
    assert home.state.can_look_up
    home.check()


@pytest.mark.seed("H29")
def test_a_state_without_keys_is_flushed(engine: SparkEngine, tiny: None, tmp_path: Path) -> None:
    stored = ManagedTable(tmp_path, "app/start").files
    state = KeyedState.load(table="state/app/all", stored=stored, keys=(), schema=SCHEMA, image=None, live=())
    for number in range(1, 6):
        row = {"k": "a", "x": 1.0, "n": number, GONE: False, "_sequence_id": number}
        frozen = state.prepare(number, (), pa.Table.from_pylist([row], schema=ARROW))
        state.checkpointed(state.checkpoint(frozen, Staging(tmp_path, 1, uuid.uuid4().hex), engine.session))
    assert state.runs
    found = state.current(engine.session, None)
    assert found is not None
    assert [row.n for row in found.collect()] == [5]


@pytest.mark.seed("H29")
def test_few_large_changes_stay_in_their_files(
    engine: SparkEngine, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_state, "YOUNG_BYTES", 100)
    home = Home(tmp_path, engine, ("k", "x"))
    rows = pa.Table.from_pylist([{"k": "a", "x": 1.0, "n": 1, GONE: False, "_sequence_id": 1}], schema=ARROW)
    home.files += Staging(tmp_path, 1, uuid.uuid4().hex).write(rows, "rows")
    frozen = home.state.prepare(1, home.files, None)
    assert (frozen.rows, frozen.young) == (None, None)
    home.load()
    assert home.state.young is None
    found = home.state.current(engine.session, None)
    assert found is not None
    assert [row.n for row in found.collect()] == [1]


@pytest.mark.seed("H29")
def test_the_hash_is_the_same_here_and_in_spark(engine: SparkEngine) -> None:
    """A run that this process sorts is merged with runs that tasks sort, and asked for by Spark's hashes."""
    ends = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
    columns = {
        f"i{bits}": pa.array([None, 0, -1, 1, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 7], kind)
        for bits, kind in ends.items()
    }
    columns["day"] = columns["i32"].cast(pa.date32())
    columns["at"] = columns["i64"].cast(pa.timestamp("us", "UTC"))
    rows = pa.table(columns)
    for names in (*((name,) for name in columns), ("i64", "i32"), ("day", "at", "i8")):
        here = hashes_here(rows, names)
        assert here is not None
        plain = rows.set_column(5, "at", rows["i64"]) if "at" in names else rows  # Spark cannot show all of these times
        frame = frame_of(engine.session, plain.select(names))
        if "at" in names:
            frame = frame.selectExpr(*(each if each != "at" else "timestamp_micros(at) as at" for each in names))
        assert here.tolist() == arrow_of(frame.select(key_hash(names)))[KEY_HASH].to_pylist()
    assert hashes_here(pa.table({"k": ["a"]}), ["k"]) is None


@pytest.mark.seed("H29")
def test_keys_that_are_equal_are_found_whatever_their_bits(engine: SparkEngine) -> None:
    rows = pa.table({"x": pa.array([0.0, -0.0, math.nan, None], pa.float64()), "n": [1, 2, 3, 4]})
    for asked, wanted in ((-0.0, [1, 2]), (0.0, [1, 2]), (math.nan, [3]), (None, [4])):
        assert rows_of_keys(rows, pa.table({"x": pa.array([asked], pa.float64())}), ["x"])["n"].to_pylist() == wanted
    strict = rows.slice(0, 1).cast(pa.schema([pa.field("x", pa.float64(), nullable=False), ("n", pa.int64())]))
    assert rows_of_keys(strict, pa.table({"x": pa.array([None], pa.float64())}), ["x"]).num_rows == 0


@pytest.mark.seed("H29")
def test_runs_that_are_sorted_by_other_columns_are_read_whole_until_they_are_written_anew(
    engine: SparkEngine, tiny: None, tmp_path: Path
) -> None:
    """Code finds such runs if it now asks by a part of the key instead of the whole key, or the other way round."""
    home = Home(tmp_path, engine, ("k", "x"))
    for number in range(6):
        home.group(dict.fromkeys(range(number, len(KEYS), 3), number))
    home.check()
    assert home.state.can_look_up
    home.looked_up_by = ("k",)
    home.load()
    assert not home.state.can_look_up
    whole = home.state.current(engine.session, None)
    assert whole is not None
    assert values(whole.toArrow()) == home.at[home.last]
    home.group({0: 7})
    home.group({3: None})
    home.check()
    assert home.state.can_look_up


def test_row_groups_without_what_is_due_are_passed_over(tmp_path: Path) -> None:
    place, per_key = LocalPlace(str(tmp_path)), RowsPerKey(("k",))
    writer = RunWriter(place=place, folder="", per_key=per_key, hashed=("k",), is_oldest=True)
    rows = 3 * ROWS_A_GROUP
    times = pa.array(range(rows), pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"k": list(range(rows)), "ends": times, "_sequence_id": [1] * rows, KEY_HASH: list(range(rows))})
    written = writer.write([table])
    assert written is not None
    source = str(tmp_path / written.name)
    index = RunIndex.read(source, ("k",))
    assert RunIndex.read(source, ("k", "x")) is None
    bounds = [(first, first + ROWS_A_GROUP - 1) for first in range(0, rows, ROWS_A_GROUP)]
    assert list(index.bounds_of("ends")) == bounds
    for above, upto, wanted in (
        (None, None, []), (None, -1, []), (9, 9, []), (None, 1, [[0, 1]]),
        (ROWS_A_GROUP - 2, ROWS_A_GROUP, [[ROWS_A_GROUP - 1, ROWS_A_GROUP]]), (rows, rows + 1, []),
    ):  # fmt: skip
        found = [hashes.to_pylist() for hashes in hashes_due(lambda: source, index, DueSpan("ends", above, upto))]
        assert found == wanted

    def never() -> Any:
        raise AssertionError("no row group has any")

    for nothing in (DueSpan("other", None, 3), DueSpan("ends", 9, 9), DueSpan("ends", rows, rows + 1)):
        assert list(hashes_due(never, index, nothing)) == []


def run(number: int, rows: int) -> Run:
    return Run((StagedFile(path=f"{number}", size=rows, rows=rows, first_id=number, last_id=number),))


@given(st.lists(st.integers(1, 100_000), max_size=300))
@settings(max_examples=examples(50))
def test_runs_stay_few_and_rows_are_copied_seldom(flushes: list[int]) -> None:
    """A reader finds a few runs in each tier, and a row is copied about once in each tier."""
    kept: list[Run] = []
    copied = 0
    for number, rows in enumerate(flushes):
        kept.append(run(number, rows))
        if count := due(kept):
            merged = sum(each.rows for each in kept[-count:])
            copied += merged
            kept[-count:] = [run(number, merged)]
    assert len(kept) <= 4 * 8
    assert sum(each.rows for each in kept[1:]) <= (kept[0].rows if kept else 0)
    assert copied <= 8 * sum(flushes)


def test_a_merge_that_fails_leaves_the_runs_as_they_are() -> None:
    def fail() -> tuple[StagedFile, ...]:
        raise OSError("no space left")

    kept = (run(1, 9), run(2, 3), run(3, 2), run(4, 1))
    for write, after in ((fail, kept), (lambda: run(9, 5).files, (kept[0], run(9, 5), kept[3])),
                         (lambda: (), (kept[0], kept[3]))):  # fmt: skip
        merge = RunMerge(kept[1:3], write)
        assert not merge.is_over
        merge.wait()
        assert merge.is_over
        assert merge.applied_to(kept) == after


def test_an_image_has_its_runs_again() -> None:
    files = [run(number, 5).files[0] for number in range(4)]
    found = (Run((files[0], files[1])), Run((files[2],)), Run((files[3],)))
    image = Image.from_json(image_of("state/a/b", 7, found).to_json())
    assert runs_of(image) == found
    assert runs_of(Image(table="state/a/b", at=7, files=tuple(files))) == (Run(tuple(files)),)
    assert runs_of(None) == ()
