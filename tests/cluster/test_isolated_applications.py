"""Every shipped application on workers that share only a bucket with the run: its tables are those of plain Python,
and those of one machine."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import oracle_customers
import oracle_lois
import oracle_vwap
import oracles
import pytest
from clusters import Project, rows_of, why_not_isolated
from harness import LONG_AGO
from test_isolated import Isolated, in_a_bucket, isolated

from drainmark.jobs.testing.bank import bank_files
from drainmark.jobs.testing.market import write_market
from drainmark.jobs.testing.radio import write_radio
from drainmark.jobs.testing.syslog import HOSTS, write_syslog
from drainmark.resources.delta import delta_tables
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.folder import Folder, LocalFolder

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
    pytest.mark.timeout(900),  # it shares the machine with other tests
]

Row = dict[str, Any]
Tables = dict[str, list[Row]]

TEXTS = (
    "To be, or not to be\nthat is the question",
    "Whether 'tis nobler\n\nin the mind",
    "",
    "to suffer\r\nthe slings",
)


def texts(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_bytes(text.encode())


def texts_in_folders(folder: Path) -> None:
    """Write a text into each folder that a source of `enron_fs` reads; the last source has two folders."""
    for name, text in zip("1456", TEXTS, strict=True):
        (folder / name).mkdir(parents=True)
        (folder / name / "0.txt").write_bytes(text.encode())
    for name in "78":
        (folder / name).mkdir()
        (folder / name / "0.txt").write_bytes(TEXTS[0].encode())


def bank(folder: Path) -> None:
    for name, transactions, warnings in bank_files(3):
        for kind, text in (("transactions", transactions), ("warnings", warnings)):
            path = folder / kind / f"{name}.{'csv' if kind == 'transactions' else 'jsonl'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def customer_changes(folder: Path) -> None:
    folder.mkdir(parents=True)
    messages = oracle_customers.drawn(seed=3, count=90)
    for number in range(3):
        (folder / f"{number}.jsonl").write_bytes(b"".join(each + b"\n" for each in messages[number::3]))


# --- plain Python -------------------------------------------------------------------------------------------------


def words(table: str) -> Callable[[Sequence[Path]], Tables]:
    """Return the oracle that counts words into a table, for ASCII texts."""
    return lambda files: {table: oracles.enron_ds(files)["enron_words"]}


def booked(files: Sequence[Path]) -> Tables:
    """Return the tables of `bank_alerts`: its first group reads all warnings, and judges payments by none."""
    contents = {path: path.read_text() for path in files}
    posts = "".join(text for path, text in contents.items() if path.parent.name == "warnings")
    payments = [text for path, text in contents.items() if path.parent.name == "transactions"]
    return oracles.bank_alerts([(text, "" if turn else posts) for turn, text in enumerate(payments)])


def customers(files: Sequence[Path]) -> Tables:
    return dict(oracle_customers.customers(line for path in files for line in path.read_bytes().splitlines()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """The input of an application, and its expected tables.

    Attributes:
        write: the function that writes the files into a folder.
        oracle: the function that makes the tables of the files, in the order of their names, in plain Python.
        inputs: the sources and their folders; the default is one source with the whole folder.
        has_ids: whether the ids of the rows are those of their files.
    """

    write: Callable[[Path], Any]
    oracle: Callable[[Sequence[Path]], Tables]
    inputs: tuple[tuple[str, str], ...] = (("", ""),)
    has_ids: bool = True


APPLICATIONS = {
    "word_count": Shipped(write=texts, oracle=words("word_counts")),
    "enron_ds": Shipped(write=texts, oracle=oracles.enron_ds),
    "enron_fs": Shipped(
        write=texts_in_folders,
        oracle=words("enron_fs_words"),
        inputs=tuple((name, "") for name in ("first", "fourth", "fifth", "sixth", "last")),
        has_ids=False,  # an id is that of a period
    ),
    "log_watch": Shipped(
        write=lambda folder: write_syslog(folder, hosts=HOSTS[:2], files_per_host=2, lines_per_file=150),
        oracle=oracles.log_watch,
    ),
    "host_watch": Shipped(
        write=lambda folder: write_syslog(folder, seed=26, hosts=HOSTS[:1], files_per_host=3, lines_per_file=100),
        oracle=oracles.host_watch,
    ),
    "customers": Shipped(write=customer_changes, oracle=customers, has_ids=False),
    "vwap": Shipped(
        write=lambda folder: write_market(folder, files=3, records_per_file=200, symbols=5), oracle=oracle_vwap.vwap
    ),
    "lois": Shipped(
        write=lambda folder: write_radio(folder, files_per_channel=2, samples_per_file=3000), oracle=oracle_lois.lois
    ),
    "bank_alerts": Shipped(
        write=bank, oracle=booked, inputs=(("transactions", "/transactions"), ("warnings", "/warnings"))
    ),
}


# --- tables -------------------------------------------------------------------------------------------------------


def tables_of(lake: Folder) -> Tables:
    """Return the rows of each visible table."""
    return {name: rows_of(lake / name) for name in lake.names() if delta_tables.is_table(lake / name)}


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Return sorted rows, with names of files without their folders, and times as texts."""
    return sorted(({name: _comparable(name, value) for name, value in row.items()} for row in rows), key=_place)


def _comparable(name: str, value: Any) -> Any:
    if name == "source_file" and value:
        return PurePosixPath(value).name
    return str(value) if isinstance(value, dt.datetime) else value


def _place(row: Row) -> str:
    """Return the sort key of a row: floats, which may differ a little, decide only if all else is the same."""
    exact = {name: str(value) for name, value in row.items() if not isinstance(value, float | list)}
    floats = {name: f"{value:.6g}" for name, value in row.items() if isinstance(value, float)}
    return repr((sorted(exact.items()), sorted(floats.items())))


def require(found: Sequence[Row], told: Sequence[Row], *, ids: bool) -> None:
    """Check rows against those of plain Python; floats may differ after about nine digits."""
    left_out = {"raw"} if ids else {"raw", "_sequence_id"}
    rows, wanted = (
        comparable([{name: value for name, value in row.items() if name not in left_out} for row in each])
        for each in (found, told)
    )
    assert len(rows) == len(wanted)
    for row, other in zip(rows, wanted, strict=True):
        assert row == {
            name: pytest.approx(value, rel=1e-8, abs=1e-9) if isinstance(value, float | list) else value
            for name, value in other.items()
        }


@pytest.mark.seed("DX1", "DX3")
@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_leaves_the_tables_of_plain_python_and_of_one_machine(
    isolated: Isolated, s3_server: str, s3_credentials: None, tmp_path: Path, name: str
) -> None:
    shipped = APPLICATIONS[name]
    shipped.write(tmp_path / "in")
    files = sorted((path for path in (tmp_path / "in").rglob("*") if path.is_file()), key=str)
    there = in_a_bucket(isolated, s3_server, "")
    for path in files:
        os.utime(path, (LONG_AGO, LONG_AGO))  # in the order of their names, as the objects
        there.store.put(f"s3://{there.bucket}", f"in/{path.relative_to(tmp_path / 'in')}", path.read_bytes())
    here = Project(tmp_path / "here", "local[2]")
    here.write("", {}, small_group_bytes=0)
    for project, root in ((there.project, f"s3://{there.bucket}/in"), (here, str(tmp_path / "in"))):
        given = [f"{source}={root}{folder}" if source else f"{root}{folder}" for source, folder in shipped.inputs]
        ran = project.drainmark("run", name, *(part for each in given for part in ("--input", each)))
        assert ran.code == 0, ran.told
    found = tables_of(BucketFolder(there.store, f"s3://{there.bucket}", "tables/lake"))
    for table, rows in shipped.oracle(files).items():
        assert rows, f"nothing is to be found in {table}: the test shows nothing"
        require(found[table], rows, ids=shipped.has_ids)
    expected = tables_of(LocalFolder(here.folder / "home" / "lake"))
    assert {table: comparable(rows) for table, rows in found.items()} == {
        table: comparable(rows) for table, rows in expected.items()
    }
