"""Folders with a file for each sequence id: whole or absent, withdrawn by rewinds, closed to old owners (V147)."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from harness import passing
from stopped_publishers import Publisher, stopped_everywhere

from drainmark.jobs.errors import BadInput, Fenced, ForeignTable, SchemaMismatch, SplitBrain, StoreUnavailable
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.protocol.records.ids import id_of, name_of, name_problem, txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.world import Seam, World, entered
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.database_columns import arrow_schema
from drainmark.resources.sinks.file_tables import FileTable

REGION = "shop/orders"
STEPS = [(os, name) for name in ("fsync", "rename", "mkdir", "listdir")]
"""The calls that read or change a folder."""


def schema_json(**columns: Any) -> str:
    kinds = {"_sequence_id": "long", **columns}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


TWO = schema_json(k="string", n="long")
INNER = {"type": "struct", "fields": [{"name": "y", "type": "double", "nullable": True, "metadata": {}}]}


class Folder:
    """One folder, and the sinks on it."""

    def __init__(self, root: Path, schema: str = TWO, **options: Any) -> None:
        self.path = root / "out"
        self.settings = Settings(home=root / "home", project_root=root)
        given = {"path": "out", "format": "csv", "layout": "file", "name": "p-{sequence_id:04d}", **options}
        names = tuple(field["name"] for field in json.loads(schema)["fields"])
        self.described = RegionTable(
            name="files/out", role=TableRole.COPY, operator="sink", schema_json=schema, history="state/shop/sink",
            columns=names, external="file", options=given,
        )  # fmt: skip
        self.schema = arrow_schema(schema)

    def sink(self, epoch: int = 1, *, region: str = REGION, identity: str = "mine", **more: Any) -> FileTable:
        return FileTable(self.settings, self.described, region, lambda: identity, epoch=epoch, **more)

    def made(self, epoch: int = 1) -> FileTable:
        sink = self.sink(epoch)
        sink.create(self.described.schema_json)
        return sink

    def rows(self, *values: tuple[Any, ...]) -> pa.Table:
        rows = [dict(zip(self.schema.names, value, strict=True)) for value in values]
        return pa.Table.from_pylist(rows, schema=self.schema)

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if name != "_drainmark")

    def left(self) -> list[str]:
        """Return the names of the work folders that are left."""
        return os.listdir(self.path / "_drainmark" / "work")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.seed("V147", "V98")
@pytest.mark.parametrize("layout", ["file", "folder"])
def test_each_id_has_a_file_that_a_rewind_withdraws(tmp_path: Path, layout: str) -> None:
    folder = Folder(tmp_path, layout=layout)
    sink = folder.made()
    sink.copy(txn_version(1, 3), range(1, 4), [folder.rows((1, "a", 1), (3, "b", 2)), folder.rows((1, "c", 3))])
    assert sink.copy(txn_version(1, 3), range(1, 4), []).done_before
    names = ["p-0001", "p-0003"] if layout == "folder" else ["p-0001.csv", "p-0003.csv"]
    assert folder.names() == names
    first = folder.path / names[0] / "data.csv" if layout == "folder" else folder.path / names[0]
    assert first.read_text() == '"k","n"\n"a",1\n"c",3\n'
    assert (sink.newest_id(), sink.txn_version(), sink.delta_version()) == (3, txn_version(1, 3), 3)
    assert sink.read().to_pylist() == [
        {"_sequence_id": 1, "k": "a", "n": 1}, {"_sequence_id": 1, "k": "c", "n": 3},
        {"_sequence_id": 3, "k": "b", "n": 2},
    ]  # fmt: skip
    folder.sink(2).rewind_rows(txn_version(2, 4), 1)
    assert folder.names() == names[:1]
    assert folder.sink(2).copy(txn_version(1, 3), range(1, 4), [folder.rows((3, "b", 2))]).done_before
    assert folder.names() == names[:1]
    assert folder.left() == []


class _Twice(World):
    """A network file system that loses the first answer to each call of a sink of files, so that it is made again."""

    def across(self, seam: Seam, deed: Callable[[], Any], on: object) -> Any:
        if seam is Seam.SINK_FILE:
            with suppress(Exception):
                deed()
        return deed()


@pytest.mark.parametrize("layout", ["file", "folder"])
def test_calls_that_are_made_twice_leave_what_calls_leave_that_are_made_once(tmp_path: Path, layout: str) -> None:
    folder = Folder(tmp_path, layout=layout)
    with entered(_Twice()):
        sink = folder.made()
        sink.copy(txn_version(1, 2), range(1, 3), [folder.rows((1, "a", 1), (2, "b", 2))])
        folder.sink(2).rewind_rows(txn_version(2, 3), 1)
        folder.sink(2).copy(txn_version(2, 4), [4], [folder.rows((4, "d", 4))])
    assert folder.sink(2).read().column("k").to_pylist() == ["a", "d"]
    assert folder.sink(2).txn_version() == txn_version(2, 4)
    assert folder.left() == []


def test_files_that_nobody_asked_for_are_not_read(folder: Folder) -> None:
    sink = folder.made()
    sink.copy(txn_version(1, 3), range(1, 4), [folder.rows((1, "a", 1), (2, "b", 2), (3, "c", 3))])
    (folder.path / "p-0003.csv").write_bytes(b'"k","n"\n"c",no number\n')
    with pytest.raises(BadInput):
        sink.read()
    assert sink.read_ids([1, 2, 9]).column("k").to_pylist() == ["a", "b"]
    assert sink.read(["k"], upto=2).column("k").to_pylist() == ["a", "b"]


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_a_read_holds_one_file_beside_what_is_asked_for(tmp_path: Path, file_format: str) -> None:
    """A person has few rows in many files: to find them, no more memory is needed than for the largest file."""
    folder = Folder(tmp_path, schema_json(k="string", n="long"), format=file_format)
    sink, files, each = folder.made(), 40, 500
    for number in range(1, files + 1):
        sink.copy(txn_version(1, number), [number], [folder.rows(*((number, f"{n:01000}", n) for n in range(each)))])
    sink.read(["n"], upto=1)
    before = pa.total_allocated_bytes()
    most = 0
    read_one = sink._files.rows

    def watched(numbers: Any) -> pa.Table:
        nonlocal most
        found = read_one(numbers)
        most = max(most, pa.total_allocated_bytes() - before)
        return found

    sink._files.rows = watched  # type: ignore[method-assign]
    found = sink.read(["n", "_sequence_id"], pc.field("n") == 7)
    assert found.to_pylist() == [{"n": 7, "_sequence_id": number} for number in range(1, files + 1)]
    whole = sink.read(["n"])
    assert whole.num_rows == files * each
    assert most < 8 * 1000 * each, "all files have five times as much"
    assert sink.read(["k"], pc.field("n") == -1).schema.names == ["k"]
    assert sink.read(upto=0).schema == folder.schema


def test_an_id_without_rows_has_a_file_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = Folder(tmp_path, every_id=True)
    sink = folder.made()
    sink.copy(txn_version(1, 3), range(1, 4), [folder.rows((2, "a", 1))])
    assert folder.names() == ["p-0001.csv", "p-0002.csv", "p-0003.csv"]
    assert sink.read().num_rows == 1


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_every_type_comes_back_as_it_was(tmp_path: Path, file_format: str) -> None:
    kinds = {
        "s": "short", "d": "double", "b": "boolean", "t": "string", "day": "date", "at": "timestamp",
        "there": "timestamp_ntz", "price": "decimal(20,4)",
    }  # fmt: skip
    values: tuple[Any, ...] = (
        -7, 1e300, True, 'ä,"\n;\\', dt.date(2026, 1, 31), dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.UTC),
        dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC).replace(tzinfo=None), Decimal("1234567890123456.7891"),
    )  # fmt: skip
    if file_format != "csv":
        kinds["raw"] = "binary"
        kinds["tags"] = {"type": "array", "elementType": "long", "containsNull": True}  # type: ignore[assignment]
        values = (*values, b"\0\xff", [1, None])
    folder = Folder(tmp_path, schema_json(**kinds), format=file_format)
    sink = folder.made()
    given = folder.rows((1, *values), (1, *(None for _ in values)), (1, *values[:3], "", *values[4:]))
    sink.copy(txn_version(1, 1), [1], [given])
    assert sink.read().to_pylist() == given.to_pylist()


def test_text_files_have_a_line_a_row(tmp_path: Path) -> None:
    folder = Folder(tmp_path, schema_json(line="string"), format="text")
    folder.made().copy(txn_version(1, 1), [1], [folder.rows((1, "one"), (1, "zwei"))])
    assert (folder.path / "p-0001.txt").read_text() == "one\nzwei\n"


@pytest.mark.parametrize(
    ("file_format", "columns"),
    [("text", {"k": "string", "n": "long"}), ("text", {"n": "long"}), ("csv", {"raw": "binary"})],
)
def test_columns_that_a_format_cannot_hold_are_refused(tmp_path: Path, file_format: str, columns: Any) -> None:
    folder = Folder(tmp_path, schema_json(**columns), format=file_format)
    with pytest.raises(SchemaMismatch):
        folder.made()
    assert not folder.path.exists()


# --- the owner of a folder ----------------------------------------------------------------------------------------


def test_a_folder_of_another_sink_region_or_home_is_refused(folder: Folder) -> None:
    folder.made()
    for other in (folder.sink(region="shop/returns"), folder.sink(identity="another")):
        with pytest.raises(ForeignTable):
            other.examine(TWO)


def test_files_that_look_like_ours_are_refused_and_others_stay(folder: Folder) -> None:
    folder.path.mkdir()
    (folder.path / "README").write_text("theirs")
    (folder.path / "p-0001.csv").write_text("theirs")
    with pytest.raises(ForeignTable):
        folder.made()
    (folder.path / "p-0001.csv").rename(folder.path / "p-1.csv")
    sink = folder.made()
    sink.copy(txn_version(1, 1), [1], [folder.rows((1, "a", 1))])
    sink.rewind_rows(txn_version(1, 2), 0)
    assert folder.names() == ["README", "p-1.csv"]


def test_a_folder_that_lost_its_note_is_no_licence_to_begin_anew(folder: Folder) -> None:
    sink = folder.made()
    (folder.path / "_drainmark" / "applied.json").unlink()
    with pytest.raises(SplitBrain):
        sink.copy(txn_version(1, 1), [1], [folder.rows((1, "a", 1))])


# --- faults -------------------------------------------------------------------------------------------------------


def at(step: str, action: Callable[[], Any]) -> Callable[[str], None]:
    return lambda point: action() if point == step else None


def failing() -> None:
    raise InjectedFailure


@pytest.mark.seed("H10")
def test_a_lost_reply_is_found_out(folder: Folder) -> None:
    folder.made()
    sink = folder.sink()
    with passing(at("publish.after_commit", failing)):
        assert not sink.copy(txn_version(1, 1), [1], [folder.rows((1, "a", 1))]).done_before
    with passing(at("publish.before_commit", failing)), pytest.raises(InjectedFailure):
        sink.copy(txn_version(1, 2), [2], [folder.rows((2, "a", 1))])
    assert folder.names() == ["p-0001.csv"]
    assert folder.left() == []


def test_a_group_that_stops_half_way_is_done_again_the_same(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three renames fails. The first file is there, whole; the retry writes it again."""
    sink = folder.made()
    renamed, rename = [], os.rename

    def breaking(source: Any, target: Any) -> None:
        renamed.append(target)
        if len(renamed) == 2:
            raise InjectedFailure
        rename(source, target)

    given = folder.rows((1, "a", 1), (2, "b", 2), (3, "c", 3))
    monkeypatch.setattr(os, "rename", breaking)
    with pytest.raises(InjectedFailure):
        sink.copy(txn_version(1, 3), range(1, 4), [given])
    monkeypatch.undo()
    assert folder.names() == ["p-0001.csv"]
    assert sink.txn_version() is None
    sink.copy(txn_version(1, 3), range(1, 4), [given])
    assert sink.read().to_pylist() == given.to_pylist()


def test_a_full_disk_costs_no_attempt(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = folder.made()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable):
        sink.copy(txn_version(1, 1), [1], [folder.rows((1, "a", 1))])
    monkeypatch.undo()
    sink.copy(txn_version(1, 1), [1], [folder.rows((1, "a", 1))])
    assert folder.names() == ["p-0001.csv"]


def taken_over(folder: Folder) -> None:
    """Do the work of the next owner: roll forward, and withdraw."""
    folder.sink(2).copy(txn_version(1, 2), [2], [folder.rows((2, "b", 2))])
    folder.sink(2).rewind_rows(txn_version(2, 3), 1)


@pytest.mark.seed("X5", "H4")
@pytest.mark.parametrize("layout", ["file", "folder"])
def test_a_publisher_stopped_before_any_of_its_steps_brings_nothing_back(tmp_path: Path, layout: str) -> None:
    """The successor rolls the same id forward and withdraws it; then the publisher wakes."""

    def made(step: int) -> Publisher:
        folder = Folder(tmp_path / str(step), layout=layout)
        folder.path.parent.mkdir()
        folder.made().copy(txn_version(1, 1), [1], [folder.rows((1, "a", 1))])

        def check(label: str) -> None:
            assert len(folder.names()) == 1, label
            assert folder.sink().txn_version() == txn_version(2, 3)

        return Publisher(
            lambda: folder.sink(1).copy(txn_version(1, 2), [2], [folder.rows((2, "b", 2))]),
            lambda: taken_over(folder),
            check,
        )

    ends = stopped_everywhere(made, STEPS)
    assert len(ends) > 8
    assert set(ends) == {"done", "fenced"}


def test_a_work_folder_that_is_made_after_the_take_over_finds_the_mark(folder: Folder) -> None:
    folder.made()
    folder.sink(2).copy(txn_version(2, 5), [5], [folder.rows((5, "b", 2))])
    with pytest.raises(Fenced):
        folder.sink(1).copy(txn_version(2, 6), [6], [folder.rows((6, "a", 1))])
    assert folder.names() == ["p-0005.csv"]


def test_a_rewind_that_comes_late_deletes_nothing_of_later_owners(folder: Folder) -> None:
    sink = folder.made()
    sink.copy(txn_version(1, 2), [1, 2], [folder.rows((1, "a", 1), (2, "b", 2))])

    def meanwhile() -> None:
        folder.sink(3).rewind_rows(txn_version(2, 3), 1)
        folder.sink(3).copy(txn_version(3, 4), [4], [folder.rows((4, "c", 3))])

    with passing(at("rewind_table.before_commit", meanwhile)):
        assert folder.sink(2).rewind_rows(txn_version(2, 3), 1).done_before
    assert folder.names() == ["p-0001.csv", "p-0004.csv"]


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["part-{sequence_id:019d}", "{sequence_id}", "a.{sequence_id:03d}.b"])
@pytest.mark.parametrize("number", [1, 42, 10**12])
def test_a_name_gives_its_id_back(template: str, number: int) -> None:
    assert name_problem(template) is None
    assert id_of(template, name_of(template, number)) == number
    assert id_of(template, f"{name_of(template, number)}~") is None


def test_a_name_that_the_template_does_not_make_is_not_ours() -> None:
    assert id_of("p-{sequence_id:04d}", "p-1") is None
    assert id_of("p-{sequence_id}", "p-01") is None


@pytest.mark.parametrize(
    "template",
    ["part", "{other}", "{sequence_id}{sequence_id}", "_{sequence_id}", ".{sequence_id}", "a/{sequence_id}",
     "{sequence_id:x}", "{sequence_id", "{}", "{sequence_id:>5}", "é" * 120 + "{sequence_id}", "{sequence_id:0250d}",
     "\ud800{sequence_id}"],
)  # fmt: skip
def test_a_template_that_no_file_can_have_or_that_cannot_be_read_back_is_refused(template: str) -> None:
    assert name_problem(template)


def test_a_date_that_python_cannot_hold_is_refused_before_json_has_to_be_written_of_it(tmp_path: Path) -> None:
    """Spark accepts a year with five digits; but the group could not be published after its commit."""
    inner = {"type": "struct", "fields": [{"name": "at", "type": "timestamp", "nullable": True, "metadata": {}}]}
    folder = Folder(tmp_path, schema_json(day="date", inner=inner), format="json")
    sink, fine = folder.made(), folder.rows((1, dt.date(9999, 12, 31), {"at": dt.datetime(1, 1, 1, tzinfo=dt.UTC)}))
    assert sink.breach([fine]) is None
    sink.copy(txn_version(1, 1), [1], [fine])
    far = pa.array([None, 2_932_897], pa.date32())
    times = pa.array([{"at": None}, {"at": 253_402_300_800_000_000}], folder.schema.field("inner").type)
    ids, none = pa.array([2, 3]), folder.rows((2, None, None), (3, None, None))
    for rows in (
        pa.table([ids, far, none["inner"]], schema=folder.schema),
        pa.table([ids, none["day"], times], schema=folder.schema),
    ):
        found = sink.breach([fine, rows])
        assert found is not None
        assert found.first_id == 3


@pytest.mark.parametrize(
    ("kind", "fine", "far"),
    [
        ("date", (-719_162, 2_932_896), 2_932_897),
        ("date", (0, None), -719_163),
        ("timestamp", (-62_135_596_800_000_000, 253_402_300_799_999_999), 253_402_300_800_000_000),
        ("timestamp_ntz", (-1, 1), -62_135_596_800_000_001),
    ],
)
@pytest.mark.parametrize("others", [{}, {"k": "string"}])
def test_a_date_that_no_reader_of_csv_takes_is_refused_before_the_commit(
    tmp_path: Path, kind: str, fine: tuple[int | None, ...], far: int, others: dict[str, str]
) -> None:
    """Such a file could be written; but neither an erasure nor a read could ever read it again."""
    folder = Folder(tmp_path, schema_json(at=kind, **others))
    sink = folder.made()

    def rows(number: int, *values: int | None) -> pa.Table:
        whole = pa.array(values, pa.int32() if kind == "date" else pa.int64())
        texts = [pa.array(["x"] * len(values)) for _ in others]
        return pa.table(
            [pa.array([number] * len(values)), whole.cast(folder.schema.field("at").type), *texts], folder.schema
        )

    good = rows(1, *(value for value in fine if value is not None or others))
    assert sink.breach([good]) is None
    found = sink.breach([good, rows(2, 0), rows(3, far)])
    assert found is not None
    assert (found.first_id, found.rows) == (3, 1)
    sink.copy(txn_version(1, 1), [1], [good])
    assert sink.read().equals(good)


@pytest.mark.parametrize("size", [2**20 - 20, 2**20 + 1, 3 * 2**20 + 7])
@pytest.mark.parametrize("file_format", ["csv", "json", "text", "parquet"])
def test_a_record_of_any_size_is_read_again_and_erased(tmp_path: Path, file_format: str, size: int) -> None:
    folder = Folder(tmp_path, schema_json(k="string"), format=file_format)
    sink, text = folder.made(), ('"' if file_format == "csv" else "x") * size
    given = folder.rows((1, "before"), (1, text), (1, "after"), (2, text))
    assert sink.breach([given]) is None
    sink.copy(txn_version(1, 2), [1, 2], [given])
    assert sink.read().equals(given)
    sink.erase(txn_version(1, 3), [1], pc.field("k") == "before")
    assert sink.read().equals(given.slice(1))


@pytest.mark.parametrize("damage", [b'"k","n"\n"a",x\n', b'"k","n"\n"a"\n', b"\xff\n", b'"n"\n1\n'])
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(folder: Folder, damage: bytes) -> None:
    """As files that earlier versions wrote of far dates, and those that others changed."""
    sink = folder.made()
    sink.copy(txn_version(1, 2), [1, 2], [folder.rows((1, "a", 1), (2, "b", 2))])
    (folder.path / "p-0002.csv").write_bytes(damage)
    with pytest.raises(BadInput) as caught:
        sink.read()
    assert caught.value.facts["file"] == "p-0002.csv"
    assert caught.value.remedy
    assert sink.read(upto=1).to_pylist() == [{"_sequence_id": 1, "k": "a", "n": 1}]


def test_numbers_that_json_lacks_are_texts(tmp_path: Path) -> None:
    """Other readers fail at NaN, and so does the reader of this project."""
    numbers = {"type": "array", "elementType": "double", "containsNull": True}
    folder = Folder(tmp_path, schema_json(x="double", ys=numbers), format="json")
    sink = folder.made()
    rows = folder.rows((1, float("nan"), [float("inf"), None, -float("inf")]), (1, 1.5, [2.5]))
    sink.copy(txn_version(1, 1), [1], [rows])

    def refuse(text: str) -> None:
        raise AssertionError(text)

    (name,) = folder.names()
    lines = (folder.path / name).read_text().splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines] == [
        {"x": "NaN", "ys": ["Infinity", None, "-Infinity"]}, {"x": 1.5, "ys": [2.5]}
    ]  # fmt: skip
    assert repr(sink.read().select(["x", "ys"]).to_pylist()) == repr(rows.select(["x", "ys"]).to_pylist())


def test_the_bounds_of_parquet_pass_over_no_nan(tmp_path: Path) -> None:
    """For Spark, NaN is above all numbers: for `> 5` it would skip a file with an upper bound of 3."""
    folder = Folder(tmp_path, schema_json(x="double", inner=INNER, n="long"), format="parquet")
    sink, nan = folder.made(), float("nan")
    given = folder.rows((1, 1.0, {"y": 3.0}, 7), (1, nan, {"y": nan}, 8))
    sink.copy(txn_version(1, 1), [1], [given])
    footer = pq.read_metadata(folder.path / "p-0001.parquet").to_dict()
    known = {column["path_in_schema"]: column["statistics"] for column in footer["row_groups"][0]["columns"]}
    assert (known["x"], known["inner.y"]) == (None, None)
    assert (known["n"]["min"], known["n"]["max"]) == (7, 8)
    assert repr(sink.read().to_pylist()) == repr(given.to_pylist())


def test_a_null_in_a_csv_of_one_column_is_refused_before_the_commit(tmp_path: Path) -> None:
    """Such a null is an empty line, which readers skip. With a second column, all readers see a row."""
    folder = Folder(tmp_path, schema_json(k="string"))
    sink, fine = folder.made(), folder.rows((1, "x"), (1, ""), (1, " "), (1, "a\n\nb"))
    assert sink.breach([fine]) is None
    found = sink.breach([fine, folder.rows((2, "x"), (3, None), (3, "y"), (4, None))])
    assert found is not None
    assert (found.first_id, found.rows, "None" in found.condition) == (3, 1, True)
    two = Folder(tmp_path / "two")
    assert two.sink().breach([two.rows((1, "x", 1), (2, None, None))]) is None
    numbers = Folder(tmp_path / "numbers", schema_json(n="long"))
    (late,) = [numbers.sink().breach([numbers.rows((1, 1), (2, None))])]
    assert late is not None
    assert late.first_id == 2
    sink.copy(txn_version(1, 1), [1], [fine])
    assert sink.read().to_pylist() == fine.to_pylist()


def test_empty_lines_that_earlier_versions_wrote_are_rows(tmp_path: Path) -> None:
    folder = Folder(tmp_path, schema_json(k="string"))
    sink, given = folder.made(), folder.rows((1, "x"), (1, None), (1, "y"), (1, None))
    sink.copy(txn_version(1, 1), [1], [given])
    assert (folder.path / "p-0001.csv").read_text() == '"k"\n"x"\n\n"y"\n\n'
    assert sink.read().to_pylist() == given.to_pylist()


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\r\n", "\n", None])
def test_what_is_not_one_line_is_refused_before_text_has_to_be_written_of_it(tmp_path: Path, bad: str | None) -> None:
    folder = Folder(tmp_path, schema_json(line="string"), format="text")
    sink, fine = folder.made(), folder.rows((1, "one"), (1, ""), (1, "a\u2028b\x0bc\\n"))
    assert sink.breach([fine]) is None
    found = sink.breach([fine, folder.rows((2, "x"), (3, bad), (4, "y"))])
    assert found is not None
    assert (found.first_id, found.rows, repr(bad) in found.condition) == (3, 1, True)
    sink.copy(txn_version(1, 1), [1], [fine])
    with (folder.path / "p-0001.txt").open(encoding="utf-8") as lines:  # the line ends of Spark
        assert [line.removesuffix("\n") for line in lines] == fine.column("line").to_pylist()
    assert sink.read().to_pylist() == fine.to_pylist()
