"""Work is written once: this process and Spark's tasks give the same facts of it, the same files, and the same errors.

Each class of tasks is a case here. Facts name files at random, so a file is compared by what it has.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import json
import pkgutil
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from architecture.tree import product_files, relative
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.types import LongType, StringType

from drainmark.jobs import tasks
from drainmark.jobs.errors import InputMissing, StoreUnavailable, TooManyPartitions
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.state.run_files import KEY_HASH
from drainmark.jobs.tasks.executor import Executor, Facts, Here, OnSpark, Task
from drainmark.jobs.tasks.exported_files import ExportTask
from drainmark.jobs.tasks.file_ranges import DigestTask, EdgeTask, FileRange, InputFile, LayoutTask
from drainmark.jobs.tasks.judged_rows import JudgeTask
from drainmark.jobs.tasks.key_bounds import KeyParts
from drainmark.jobs.tasks.keyed_files import (
    FileRewrite,
    FindTask,
    PartTask,
    ReplaceTask,
    RewriteTask,
    SampleTask,
    SplitFile,
    SplitTask,
)
from drainmark.jobs.tasks.layout import Layout
from drainmark.jobs.tasks.parquet_files import WriteTask, frame_of_shares, own_shares, write_file
from drainmark.jobs.tasks.parquet_shares import FileShare, RowFile
from drainmark.jobs.tasks.places import LocalPlace, MemoryPlace, Place, TooLarge
from drainmark.jobs.tasks.read_files import ReadTask, read_files
from drainmark.jobs.tasks.slice_shares import Share, ShareTask, Unfit
from drainmark.jobs.tasks.sorted_runs import FlushTask, MergeTask, RunWriter
from drainmark.resources.inputs.task_access import TaskAccess
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark
register_pickle_by_value(sys.modules[__name__])  # workers cannot import it

TEXTS = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5))
ROWS = st.lists(st.tuples(st.integers(1, 3), TEXTS, st.integers(-3, 3)), min_size=1, max_size=12)
SCHEMA = pa.schema({SEQUENCE_ID: pa.int64(), "k": pa.string(), "n": pa.int64()})
EXPECTED = Expected(format="csv", columns=(("k", StringType()), ("n", LongType())), options={"multiline": "true"})
READ = pa.schema(
    {SEQUENCE_ID: pa.int64(), POSITION: pa.struct({"block": pa.int64(), "row": pa.int64()}), "k": pa.string()}
)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The input of a case: a folder, and rows that it may write there."""

    folder: Path
    rows: pa.Table

    @classmethod
    def of(cls, folder: Path, rows: Sequence[tuple[Any, ...]]) -> Scene:
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        return cls(folder=folder, rows=pa.table(columns, schema=SCHEMA))

    @property
    def inputs(self) -> LocalPlace:
        return LocalPlace(str(self.folder / "in"))

    def parts(self) -> list[pa.Table]:
        """Return the rows in two parts; the second may be empty."""
        return [self.rows.slice(0, self.rows.num_rows // 2 + 1), self.rows.slice(self.rows.num_rows // 2 + 1)]

    def files(self) -> list[str]:
        """Write the rows as Parquet files."""
        return [write_file(part, self.inputs, "rows").name for part in self.parts()]

    def ranges(self) -> list[tuple[FileRange, ...]]:
        """Write the rows as CSV files, quotes and line ends in them; return shares of their ranges."""
        shares = []
        for number, part in enumerate(self.parts(), 1):
            path = self.folder / f"{number}.data"
            quoted = (f'"{(row["k"] or "").replace(chr(34), chr(34) * 2)}",{row["n"]}\n' for row in part.to_pylist())
            path.write_bytes("".join(quoted).encode())
            size = path.stat().st_size
            file = InputFile(number=number, path=str(path), size=size)
            cut = size // 2
            shares.append((FileRange(file=file, start=0, end=cut), FileRange(file=file, start=cut, end=size)))
        return shares

    def wholes(self) -> list[tuple[FileRange, ...]]:
        return [
            (FileRange(file=each[0].file, start=0, end=each[0].file.size, is_whole=True),) for each in self.ranges()
        ]

    def writer(self, place: Place) -> RunWriter:
        per_key = RowsPerKey(("k",))
        return RunWriter(place=place, folder="run", per_key=per_key, hashed=("k",), is_oldest=False)

    def run(self, place: Place) -> list[str]:
        """Write the rows as a run."""
        task = FlushTask(self.writer(place))
        return [facts["name"] for facts in task.work(iter(self.hashed().to_batches()))]

    def hashed(self) -> pa.Table:
        """Return the rows in the order of hashes, equal ones of equal keys."""
        hashes = [zlib.crc32(repr(key).encode()) - 2**31 for key in self.rows["k"].to_pylist()]
        return self.rows.append_column(KEY_HASH, pa.array(hashes, pa.int64())).sort_by(KEY_HASH)


@dataclass(frozen=True)
class Given:
    """A source of rows in a file of JSON."""

    path: str

    def read(self, piece: Any, access: Any) -> Iterator[pa.RecordBatch]:
        found = json.loads(Path(self.path).read_text())
        yield pa.record_batch({"k": pa.array(found[piece], pa.string())})
        if None in found[piece]:
            raise ValueError(f"null in part {piece}")


def shared_rows(scene: Scene, place: Place) -> tuple[Any, Sequence[Any]]:
    path = scene.folder / "rows.json"
    path.write_text(json.dumps([part["k"].to_pylist() for part in scene.parts()]))
    access = TaskAccess(region="app/s")
    task = ShareTask(
        reads=Given(str(path)), access=access, of_task=access, schema=READ, reading=None, place=place, folder="rows"
    )
    return task, [(Share(number=number, sequence_id=7, piece=number, size=1),) for number in range(2)]


def exported(scene: Scene, place: Place) -> tuple[Any, Sequence[Any]]:
    written = [write_file(part, scene.inputs, "rows") for part in scene.parts() if part.num_rows]
    files = tuple(
        StagedFile(path=each.name, size=each.size, rows=each.rows, first_id=each.first_id, last_id=each.last_id)
        for each in written
    )
    task = ExportTask(
        source=scene.inputs, files=files, schema=SCHEMA, file_format="json", every_id=True, place=place, folder="out"
    )
    return task, [(1, 2), (3,)]


def rewritten(scene: Scene, place: Place) -> tuple[Any, Sequence[Any]]:
    layout = Layout(partition_by=("n",), cluster_by=("k",), has_statistics=True)
    task = RewriteTask(source=scene.inputs, place=place, folder="out", schema=SCHEMA, layout=layout)
    files = tuple(RowFile(path=path) for path in scene.files())
    return task, [files, files[:1]]


def row_files(scene: Scene, place: Place) -> list[RowFile]:
    return [RowFile(path=write_file(part, place, "rows").name) for part in scene.parts() if part.num_rows]


def merged(scene: Scene, place: Place) -> tuple[Any, Sequence[Any]]:
    split = SplitTask(place=place, parts=KeyParts(keys=("k",), count=2))
    files = FileShare(files=tuple(row_files(scene, place)), place=place, schema=SCHEMA)
    later = tuple(SplitFile(**facts) for facts in split.work(files))
    task = PartTask(place=place, schema=SCHEMA, keys=("k",), layout=Layout(), later=later, earlier=None)
    return task, [(0,), (1,)]


CASES: dict[type, Callable[[Scene, Place], tuple[Any, Any]]] = {
    EdgeTask: lambda scene, place: (EdgeTask(EXPECTED), scene.ranges()),
    DigestTask: lambda scene, place: (DigestTask(), scene.ranges()),
    LayoutTask: lambda scene, place: (LayoutTask(Expected(format="json", columns=None)), scene.wholes()),
    ReadTask: lambda scene, place: (ReadTask(EXPECTED, place), scene.wholes()),
    ShareTask: shared_rows,
    ExportTask: exported,
    RewriteTask: rewritten,
    MergeTask: lambda scene, place: (
        MergeTask(scene.writer(place), (*scene.run(place), *scene.run(place))),
        [(None, 0), (0, None)],
    ),
    FindTask: lambda scene, place: (
        FindTask(place=place, changed=scene.rows.select(["k"]).slice(0, 1)),
        row_files(scene, place),
    ),
    ReplaceTask: lambda scene, place: (
        ReplaceTask(place=place, schema=SCHEMA, changed=scene.rows.select(["k"]).slice(0, 1), layout=Layout()),
        [FileRewrite(files=(file,), rows=scene.rows.slice(0, 1)) for file in row_files(scene, place)],
    ),
    SampleTask: lambda scene, place: (
        SampleTask(),
        [FileShare(files=(file,), place=place, schema=SCHEMA) for file in row_files(scene, place)],
    ),
    SplitTask: lambda scene, place: (
        SplitTask(place=place, parts=KeyParts(keys=("k",), count=3)),
        [FileShare(files=(replace(file, through=2),), place=place, schema=SCHEMA) for file in row_files(scene, place)],
    ),
    PartTask: merged,
    WriteTask: lambda scene, place: (
        WriteTask(place, "out", Layout(partition_by=("n",), most_partitions=5)),
        scene.rows,
    ),
    FlushTask: lambda scene, place: (FlushTask(scene.writer(place)), scene.hashed()),
    JudgeTask: lambda scene, place: (JudgeTask("text"), scene.rows.select(["k", SEQUENCE_ID])),
}


def test_every_class_of_tasks_is_a_case() -> None:
    modules = [
        importlib.import_module(f"{tasks.__name__}.{each.name}") for each in pkgutil.iter_modules(tasks.__path__)
    ]
    classes = {kind for module in modules for _, kind in inspect.getmembers(module, inspect.isclass)}
    found = {kind for kind in classes if inspect.isfunction(getattr(kind, "work", None)) and not kind.__subclasses__()}
    assert {kind for kind in found if kind is not Task} == CASES.keys()


def test_no_class_of_tasks_is_elsewhere() -> None:
    homes = {relative(path.parent) for path in product_files() if "def work(self, share" in path.read_text()}
    assert homes == {"jobs/tasks"}


@settings(max_examples=2, deadline=None)
@given(rows=ROWS)
def test_a_frame_has_the_rows_that_its_shares_give_here(
    engine: SparkEngine, tmp_path_factory: Any, rows: list[tuple[Any, ...]]
) -> None:
    scene = Scene.of(tmp_path_factory.mktemp("work"), rows)
    shares = own_shares(scene.inputs, scene.files(), SCHEMA, None)
    here = [row for share in shares for batch in share.rows() for row in batch.to_pylist()]
    kind = engine.session.createDataFrame(scene.rows).schema
    assert [row.asDict() for row in frame_of_shares(engine.session, shares, kind).collect()] == here
    assert here == scene.rows.to_pylist()


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
@settings(max_examples=2, deadline=None)
@given(rows=ROWS)
def test_both_executors_give_the_same(
    engine: SparkEngine, tmp_path_factory: Any, kind: type, rows: list[tuple[Any, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("work")
    scene = Scene.of(folder, rows)
    found = []
    for executor, place in (
        (Here(), LocalPlace(f"{folder}/here")),
        (OnSpark(engine.session), LocalPlace(f"{folder}/on")),
    ):
        task, given_to = CASES[kind](scene, place)
        found.append(outcome(executor, task, given_to, engine, place))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [ReadTask, ShareTask, WriteTask, ExportTask], ids=lambda kind: kind.__name__)
@given(rows=ROWS)
@settings(max_examples=2, deadline=None)
def test_memory_is_a_place(engine: SparkEngine, tmp_path_factory: Any, kind: type, rows: list[tuple[Any, ...]]) -> None:
    """Its files are those of a folder, but for their size and mark."""
    folder = tmp_path_factory.mktemp("work")
    scene = Scene.of(folder, rows)
    found = []
    for place in (LocalPlace(f"{folder}/here"), MemoryPlace()):
        task, given_to = CASES[kind](scene, place)
        found.append(outcome(Here(), task, given_to, engine, place, exactly=False))
    assert found[0] == found[1]


def test_memory_takes_so_many_values_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "1.data"
    path.write_text("a,1\n" * 10)
    files = [InputFile(number=1, path=str(path), size=40)]
    assert read_files(Here(), files, EXPECTED, MemoryPlace(most_values=40)).verdicts[1].records == 10
    with pytest.raises(TooLarge):
        read_files(Here(), files, EXPECTED, MemoryPlace(most_values=39))


def outcome(
    executor: Executor,
    task: Any,
    given_to: Any,
    engine: SparkEngine | None,
    place: Place | None,
    *,
    exactly: bool = True,
) -> Any:
    """Return the facts with what their files have, or what is to be known of the error.

    Args:
        given_to: shares, or the rows of one partition.
        exactly: with the sizes and marks of files.
    """
    try:
        if isinstance(given_to, pa.Table) and engine is not None:
            frame = engine.session.createDataFrame(given_to).coalesce(1)
            told = executor.run_over(frame, task)
        else:
            told = executor.run(task, given_to)
    except Exception as error:
        return type(error), str(error), {name: each for name, each in vars(error).items() if name != "__notes__"}
    return compared(json.loads(json.dumps(told)), place, exactly=exactly)


def compared(told: Any, place: Place | None, *, exactly: bool) -> Any:
    """Return facts with the content of each file in place of its name."""
    if isinstance(told, list):
        return [compared(each, place, exactly=exactly) for each in told]
    if not isinstance(told, dict):
        return told
    if "path" in told and place is not None:
        return {**told, "path": pq.read_table(place.opened(told["path"])).to_pylist()}
    if "footer_rows" not in told or place is None:
        return {name: compared(each, place, exactly=exactly) for name, each in told.items()}
    folder, _, name = told["name"].rpartition("/")
    opened = place.opened(told["name"])
    if name.endswith(".parquet"):
        content: Any = pq.read_table(opened).to_pylist()
    else:
        content = Path(opened).read_bytes() if isinstance(opened, str) else opened.read()
    others = {key: each for key, each in told.items() if key != "name" and (exactly or key not in ("size", "mark"))}
    return {**others, "name": folder, "content": content}


# --- errors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """A task that yields the numbers below its share, and fails at 3 if it is told how."""

    fails: str = ""

    def work(self, share: int) -> Iterator[Facts]:
        for number in range(share):
            if number == 3 and self.fails:
                raise FAILURES[self.fails]()
            yield {"share": share, "number": number, "pair": (number, None)}


FAILURES: dict[str, Callable[[], Exception]] = {
    "disk": lambda: OSError(errno.ENOSPC, "No space left on device", "/t/a"),
    "disk without a number": lambda: OSError("it is not there"),
    "store": lambda: OSError(errno.EIO, "no answer", "s3://bucket/a"),
    "column": lambda: Unfit(7, "n", "bigint", "is no number"),
    "input": lambda: InputMissing("it is gone", remedy="put it back", triggers=(), trigger="a"),
    "partitions": lambda: TooManyPartitions("too many", remedy="take fewer", columns=("day",)),
}


@pytest.mark.parametrize("shares", [[], [0], [5], [4, 0, 2, 6]])
def test_the_facts_come_in_the_order_of_the_shares(engine: SparkEngine, shares: list[int]) -> None:
    found = outcome(OnSpark(engine.session), Counted(), shares, None, None)
    assert found == outcome(Here(), Counted(), shares, None, None)
    assert [each["share"] for each in found] == [share for share in shares for _ in range(share)]


@pytest.mark.parametrize("fails", FAILURES)
def test_an_error_of_a_share_is_the_same(engine: SparkEngine, fails: str) -> None:
    task, shares = Counted(fails), [1, 5, 2]
    found = outcome(OnSpark(engine.session), task, shares, None, None)
    assert found == outcome(Here(), task, shares, None, None)
    assert issubclass(found[0], StoreUnavailable if fails == "store" else type(FAILURES[fails]()))
