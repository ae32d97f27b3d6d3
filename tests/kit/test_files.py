"""Input in memory: the kit writes files for a source, and the source reads the same rows; no Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.orchestration.testing.applications import application_from, reference_of, sources_of
from drainmark.orchestration.testing.files import Inbox, column_names, encoded


def one_source() -> None:
    dm.source(dm.DirectoryScan(path="in", format="csv", schema="a string, n bigint", settle=3))(events)


def two_sources() -> None:
    one_source()
    dm.source(dm.DirectoryScan(path="in"))(lines)


def events(scanned: Any) -> Any:
    return scanned


def lines(scanned: Any) -> Any:
    return scanned


def inbox(folder: Path, declare: Any = one_source) -> Inbox:
    return Inbox(folder, sources_of(application_from(declare)))


@pytest.mark.parametrize(
    ("ddl", "names"),
    [
        ("id bigint", ("id",)),
        ("id bigint, amount decimal(10,2), n int", ("id", "amount", "n")),
        ("`a, b` string, s struct<x: int, y: array<string>>, m map<string,int>", ("a, b", "s", "m")),
        ("id: bigint, n int not null", ("id", "n")),
    ],
)
def test_the_columns_of_a_schema_are_found_in_order(ddl: str, names: tuple[str, ...]) -> None:
    assert column_names(ddl) == names


def test_rows_are_written_in_the_format_of_the_source() -> None:
    rows = [{"n": 1, "a": 'x,"y'}, {"a": None, "n": None}]
    scan = DirectoryScan(path="in", format="csv", schema="a string, n bigint")
    assert encoded(rows, scan, "f.csv") == b'"x,\\"y",1\n,\n'
    with_header = DirectoryScan(path="in", format="csv", schema="a string, n bigint", options={"header": "true"})
    assert encoded(rows[1:], with_header, "f.csv") == b"a,n\n,\n"
    moments = DirectoryScan(path="in", format="json", schema="at timestamp")
    assert json.loads(encoded([{"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}], moments, "f")) == {
        "at": "2026-01-01T00:00:00+00:00"
    }
    assert encoded([{"value": "to be"}], DirectoryScan(path="in"), "f.txt") == b"to be\n"


def test_a_column_that_the_source_has_not_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        encoded([{"b": 1}], DirectoryScan(path="in", format="csv", schema="a string"), "f.csv")
    assert "a" in (caught.value.remedy or "")


@pytest.mark.seed("I17")
def test_files_are_settled_and_in_the_order_given_across_calls(tmp_path: Path) -> None:
    made = inbox(tmp_path)
    paths = [*made.add({"b.csv": "", "a.csv": b"x,1\n"}), *made.add({"0.csv": [{"a": "x", "n": 1}]})]
    times = [path.stat().st_mtime_ns for path in paths]
    assert times == sorted(set(times))
    assert max(times) / 1e9 < time.time() - 3
    assert [path.name for path in paths] == ["b.csv", "a.csv", "0.csv"]
    with pytest.raises(UsageError):
        made.add({"a.csv": ""})


def test_a_folder_is_copied_in_the_order_of_its_times(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for age, name in enumerate(("new.csv", "old.csv")):
        (mine / name).write_text(name)
        os.utime(mine / name, (1000 - age, 1000 - age))
    made = inbox(tmp_path / "inbox").add(mine)
    assert [path.read_text() for path in made] == ["old.csv", "new.csv"]


def test_several_sources_ask_for_files_by_source(tmp_path: Path) -> None:
    made = inbox(tmp_path, two_sources)
    assert [path.parent.name for path in made.add({"lines": {"a": "x"}, "events": {"b": ""}})] == ["lines", "events"]
    with pytest.raises(UsageError):
        made.add({"a": "x"})
    with pytest.raises(UnknownName) as caught:
        made.add({"line": {"b": "x"}})
    assert "lines" in (caught.value.remedy or "")


def test_what_is_killed_must_be_found_by_another_process() -> None:
    assert reference_of("word_count") == "word_count"
    with pytest.raises(UsageError):
        reference_of(one_source)


def test_the_plugin_loads_nothing_and_so_costs_a_foreign_project_nothing(tmp_path: Path) -> None:
    """Every pytest run on a machine with Drainmark loads the plugin; only a test that uses it pays."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert 'drainmark.orchestration.testing.plugin' in sys.modules\n"
        "    ours = {n for n in sys.modules if n.partition('.')[0] == 'drainmark'}\n"
        "    of_the_kit = {'drainmark.orchestration.testing', 'drainmark.orchestration.testing.plugin'}\n"
        "    assert ours == {'drainmark', 'drainmark.orchestration', *of_the_kit}\n"
        "    assert not {'pyspark', 'dagster', 'deltalake', 'pyarrow', 'sqlalchemy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
