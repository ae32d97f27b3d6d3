"""Every shipped application on workers that share nothing with the run but a bucket: the tables of one machine.

Those of one machine are compared with plain Python in tests/integration, and here as well where that costs a line.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import oracles
import pyarrow.parquet as pq
import pytest
from clusters import Project
from harness import LONG_AGO
from test_isolated import Isolated, isolated

from drainmark.jobs.testing.bank import bank_files
from drainmark.jobs.testing.market import write_market
from drainmark.jobs.testing.radio import write_radio
from drainmark.jobs.testing.syslog import HOSTS, write_syslog
from drainmark.resources.delta import commits
from drainmark.resources.storage.folder import Folder, LocalFolder
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3_folder import S3Folder

__all__ = ["isolated"]

pytestmark = pytest.mark.slow

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


def bank(folder: Path) -> None:
    for name, transactions, warnings in bank_files(3):
        for kind, text in (("transactions", transactions), ("warnings", warnings)):
            path = folder / kind / f"{name}.{'csv' if kind == 'transactions' else 'jsonl'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


APPLICATIONS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "word_count": (texts, ("",)),
    "enron_ds": (texts, ("",)),
    "enron_fs": (texts, ("",)),
    "log_watch": (lambda folder: write_syslog(folder, hosts=HOSTS[:2], files_per_host=2, lines_per_file=150), ("",)),
    "vwap": (lambda folder: write_market(folder, files=3, records_per_file=200, symbols=5), ("",)),
    "lois": (lambda folder: write_radio(folder, files_per_channel=2, samples_per_file=3000), ("",)),
    "bank_alerts": (bank, ("transactions", "warnings")),
}


def tables_of(lake: Folder) -> Iterator[tuple[str, list[str]]]:
    """Yield each visible table's rows, in an order of their own; names of files without their folders."""
    for name in lake.names():
        folder = lake / name
        if not commits.is_table(folder):
            continue
        files = commits.live_files(commits.open_table(folder), folder)
        found = [row for file in files for row in pq.read_table(folder.source(file.path)).to_pylist()]
        for row in found:
            if row.get("source_file"):
                row["source_file"] = PurePosixPath(row["source_file"]).name
        yield name, sorted(repr(sorted(row.items())) for row in found)


@pytest.mark.seed("DX1", "DX3")
@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_leaves_the_tables_of_one_machine(
    isolated: Isolated, s3_server: str, s3_credentials: None, tmp_path: Path, name: str
) -> None:
    write, inputs = APPLICATIONS[name]
    write(tmp_path / "in")
    bucket = uuid.uuid4().hex[:12]
    store = ObjectStore(s3_server)
    store.connection.client.create_bucket(Bucket=bucket)
    for path in sorted(path for path in (tmp_path / "in").rglob("*") if path.is_file()):
        os.utime(path, (LONG_AGO, LONG_AGO))  # in the order of their names, as the objects
        store.put(bucket, f"in/{path.relative_to(tmp_path / 'in')}", path.read_bytes())
    here = Project(tmp_path / "here", "local[2]")
    here.write("", {}, small_group_bytes=0)
    there = Project(isolated.away / bucket, isolated.master)
    settings = {"s3_endpoint_url": s3_server, "tables_url": f"s3://{bucket}/tables", "small_group_bytes": 0}
    there.write("", {}, **settings)
    for project, root in ((here, str(tmp_path / "in")), (there, f"s3://{bucket}/in")):
        given = [f"{each}={root}/{each}" if each else root for each in inputs]
        ran = project.drainmark("run", name, *(part for each in given for part in ("--input", each)))
        assert ran.code == 0, ran.told
    found = dict(tables_of(S3Folder(store, bucket, "tables/lake")))
    expected = dict(tables_of(LocalFolder(here.folder / "home" / "lake")))
    assert found == expected
    assert any(expected.values())
    if name == "log_watch":
        rows = oracles.log_watch(sorted(path for path in (tmp_path / "in").rglob("*") if path.is_file()))
        assert {table: len(kept) for table, kept in found.items()} == {table: len(kept) for table, kept in rows.items()}
