"""ORC and binary files as rows of the declared columns: each value is what the file says, or its row is bad."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import types as sql
from reads import parsed
from waiting import SOON, eventually

from drainmark.jobs.formats import orc as orc_format
from drainmark.jobs.formats.bad_records import OtherColumns, Refused
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.frames.tags import arrow_schema

ZONED = dt.datetime(1960, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
NOON = ZONED.replace(tzinfo=None)
TIME, NTZ, TEXT = sql.TimestampType(), sql.TimestampNTZType(), sql.StringType()


def declared(kind: sql.DataType) -> Expected:
    return Expected(format="orc", columns=[("v", kind)])


def read(path: Path, kind: sql.DataType) -> tuple[list[Any], dict[int, str]]:
    """Return the values of a column, and the faults by row."""
    values, faults = list[Any](), dict[int, str]()
    for part in parsed(path, declared(kind)):
        assert part.rows.schema == arrow_schema(sql.StructType().add("v", kind))
        part.rows.validate(full=True)
        faults.update({len(values) + place: why for place, why in part.faults.items()})
        values += part.rows["v"].to_pylist()
    return values, faults


def written(folder: Path, column: pa.Array, **options: Any) -> Path:
    orc.write_table(pa.table({"v": column}), folder / "file", **options)
    return folder / "file"


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, None], pa.int8()), sql.LongType(), [1, None]),
        (pa.array([1.5], pa.float32()), sql.DoubleType(), [1.5]),
        (pa.array(["ö", None]), TEXT, ["ö", None]),
        (pa.array(["ö".encode()]), TEXT, ["ö"]),
        (pa.array([dt.date(1, 1, 1), dt.date(9999, 1, 1)]), sql.DateType(), [dt.date(1, 1, 1), dt.date(9999, 1, 1)]),
        (pa.array([NOON], pa.timestamp("us")), TIME, [ZONED]),
        (pa.array([NOON], pa.timestamp("us")), NTZ, [NOON]),
        (pa.array([ZONED], pa.timestamp("us", "UTC")), TIME, [ZONED]),
        (pa.array([[ZONED], None], pa.list_(pa.timestamp("us", "UTC"))), sql.ArrayType(TIME), [[ZONED], None]),
        (pa.array([[("k", {"A": 1})], None], pa.map_(pa.string(), pa.struct([("A", pa.int64())]))),
         sql.MapType(TEXT, sql.StructType().add("a", sql.LongType())),
         [[("k", {"a": 1})], None]),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)  # fmt: skip
def test_a_value_is_what_the_file_says(tmp_path: Path, column: pa.Array, kind: sql.DataType, values: list[Any]) -> None:
    path = written(tmp_path, column)
    assert read(path, kind) == (values, {})


def test_nanoseconds_and_bytes_that_are_no_text_are_bad_rows(tmp_path: Path) -> None:
    times = pa.array([1000, 1001, -1, None], pa.timestamp("ns"))
    assert read(written(tmp_path, times), TIME)[1].keys() == {1, 2}
    assert read(written(tmp_path, pa.array([[b"a"], [b"\xff"]])), sql.ArrayType(TEXT)) == (
        [["a"], [None]],
        {1: r"'v[]': '\xff' is no string: its bytes are no UTF-8"},
    )


def test_times_that_the_library_does_not_hold_refuse_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, pa.array([-10_000_000_000], pa.timestamp("s")))
    with pytest.raises(Refused, match="out of range for nanosecond"):
        read(path, TIME)


@pytest.mark.parametrize("kind", [sql.IntegerType(), TEXT, sql.DoubleType(), TIME])
def test_a_type_that_may_not_hold_the_values_refuses_the_file(tmp_path: Path, kind: sql.DataType) -> None:
    path = written(tmp_path, pa.array([1], pa.int64()))
    with pytest.raises(OtherColumns, match="'v' is bigint, not "):
        read(path, kind)


def test_damage_does_not_end_this_process(tmp_path: Path) -> None:
    """ORC's library ends the process in which it reads some of these files."""
    table = pa.table({"v": range(500), "l": [[number] * (number % 3) for number in range(500)]})
    orc.write_table(table, tmp_path / "file", compression="uncompressed")
    dice, whole, found = random.Random(7), (tmp_path / "file").read_bytes(), set[str]()
    for _ in range(50):
        content = bytearray(whole)
        for _ in range(4):
            content[dice.randrange(len(content) // 2)] = dice.randrange(256)
        (tmp_path / "file").write_bytes(content)
        try:
            read(tmp_path / "file", sql.LongType())
        except Refused as refused:
            found.add(str(refused))
    assert all(why.startswith(("has stripes that cannot be read: ", "has 500 rows")) for why in found)
    assert found


def test_a_file_that_ends_the_process_that_reads_it_is_refused_and_the_next_one_is_read(tmp_path: Path) -> None:
    """One damaged length: ORC's library reads behind its memory."""
    table = pa.table({"v": range(500), "l": [[f"x{number}"] * (number % 3) for number in range(500)]})
    orc.write_table(table, tmp_path / "file", compression="uncompressed")
    whole = (tmp_path / "file").read_bytes()
    assert whole[214:220] == b"\xc0Y\x03\x00\xc1\x8f", "lengths, each the same as the one before"
    (tmp_path / "file").write_bytes(whole[:217] + b"\x07" + whole[218:])
    with pytest.raises(Refused, match="ORC's library ends with SIG"):
        read(tmp_path / "file", sql.LongType())
    (tmp_path / "file").write_bytes(whole)
    assert read(tmp_path / "file", sql.LongType())[0] == [*range(500)]


def process_of_trials() -> int:
    running = orc_format._process._running
    assert running is not None
    return running[0].pid


def test_one_process_tries_all_files_and_another_one_takes_its_place_when_it_has_ended(tmp_path: Path) -> None:
    path = written(tmp_path, pa.array([1]))
    found = []
    for _ in range(2):
        assert read(path, sql.LongType()) == ([1], {})
        found.append(process_of_trials())
    os.kill(found[0], signal.SIGKILL)
    os.waitid(os.P_PID, found[0], os.WEXITED | os.WNOWAIT)
    assert read(path, sql.LongType()) == ([1], {})
    assert found[0] == found[1] != process_of_trials()
    with pytest.raises(ChildProcessError):  # it is no zombie
        os.waitpid(found[0], 0)


def test_a_file_that_takes_too_much_time_is_refused_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, pa.array([str(number * number) for number in range(1_000_000)]), compression="zlib")
    with monkeypatch.context() as patch:
        patch.setattr(orc_format, "_SECONDS", 0.02)
        patch.setattr(orc_format, "_BYTES_A_SECOND", 2**60)
        with pytest.raises(Refused, match=r"stripes that cannot be read: ORC's library needs more than 0\.02 seconds"):
            read(path, TEXT)
    assert read(written(tmp_path, pa.array([1])), sql.LongType()) == ([1], {})


def test_a_forked_process_has_a_process_of_its_own_and_no_process_stays(tmp_path: Path) -> None:
    """As the workers of Spark, which a daemon forks; the second process is killed while it has one."""
    program = """
import os, signal, sys
from pathlib import Path
from pyspark.sql.types import LongType
from reads import parsed
from drainmark.jobs.formats import orc
from drainmark.jobs.formats.format import Expected
def tried():
    (part,) = parsed(Path(sys.argv[1]), Expected(format="orc", columns=[("v", LongType())]))
    assert part.rows["v"].to_pylist() == [1]
    print(orc._process._running[0].pid, flush=True)
tried()
if os.fork() == 0:
    tried()
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
tried()
"""
    path = written(tmp_path, pa.array([1]))
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True, timeout=SOON,
    )  # fmt: skip
    first, forked, again = map(int, ended.stdout.split())
    assert first == again != forked
    eventually(lambda: not any(is_running(each) for each in (first, forked)))


def is_running(process: int) -> bool:
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_names_with_dots_are_read(tmp_path: Path) -> None:
    orc.write_table(pa.table({"a": [{"b": 1}], "a.b": [2]}), tmp_path / "file")
    expected = Expected(format="orc", columns=[("A.b", sql.LongType())])
    (part,) = parsed(tmp_path / "file", expected)
    assert part.rows.to_pydict() == {"A.b": [2]}


def test_a_file_of_many_rows_comes_in_pieces_and_a_small_file_of_gigabytes_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, pa.array(["x" * 10_000] * 3000), compression="zstd", dictionary_key_size_threshold=1.0)
    assert max(part.rows.nbytes for part in parsed(path, declared(TEXT))) < 10_000_000
    longer = pa.array(["x" * 1_000_000] * 400)
    path = written(tmp_path, longer, compression="zstd", dictionary_key_size_threshold=1.0)
    assert path.stat().st_size < 10_000
    with pytest.raises(Refused, match="when decompressed"):
        read(path, TEXT)


@pytest.mark.parametrize(("content", "rows"), [(b"\x00\xff\n", 1), (b"", 0)])
def test_a_binary_file_is_one_row_with_its_content(tmp_path: Path, content: bytes, rows: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    found = [*parsed(path, Expected(format="binary", columns=None))]
    assert [row for part in found for row in part.rows.to_pylist()] == [{"content": content, "length": 3}] * rows
