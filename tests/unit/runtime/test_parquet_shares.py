"""One reader for files of tables, of lookups and of our own: the error for an unreadable file names its owner."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.errors.environment import ClusterRefused, FileDamaged
from drainmark.jobs.operators.sources.table_log import Followed
from drainmark.jobs.tasks.parquet_shares import OURS, FileErrors, FileShare, RowFile
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.resources.delta.lookup_tables import LookedUp

SCHEMA = pa.schema({"n": pa.int64(), "later": pa.string(), "p": pa.int64()})
READERS: dict[str, FileErrors] = {
    "ours": OURS,
    "looked up": LookedUp("stock"),
    "followed": Followed(table="stock"),
    "followed by workers": Followed(table="stock", seen="/t"),
}


def share(folder: Path, owner: FileErrors = OURS) -> FileShare:
    files = (RowFile(path="a", version=3, constants={"p": "7"}), RowFile(path="b", version=4))
    return FileShare(files=files, place=LocalPlace(str(folder)), schema=SCHEMA, owner=owner)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"n": [1, 2], "other": ["x", "y"]}), tmp_path / "a")
    pq.write_table(pa.table({"p": [5], "n": [3]}), tmp_path / "b")
    return tmp_path


def test_a_share_gives_the_rows_of_its_files_in_their_order(folder: Path) -> None:
    rows = [row for batch in share(folder).rows() for row in batch.to_pylist()]
    assert [(row["n"], row["later"], row["p"]) for row in rows] == [(1, None, 7), (2, None, 7), (3, None, 5)]


def gone(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("damage", "reader", "kind", "said"),
    [
        (gone, "ours", FileNotFoundError, "No such file"),
        (gone, "looked up", ValueError, "stock cannot be looked up: its file b is gone"),
        (gone, "followed", InputMissing, "version 4 of stock cannot be read any more: its file b is gone"),
        (gone, "followed by workers", ClusterRefused, "a worker does not find b of stock, .* below /t"),
        (cut_off, "ours", FileDamaged, "a file of Drainmark's own is damaged: /.*/b: "),
        (cut_off, "looked up", ValueError, "stock cannot be looked up: its file b is damaged: "),
        (cut_off, "followed", InputChanged, "the file b of version 4 of stock is damaged: "),
        (cut_off, "followed by workers", InputChanged, "the file b of version 4 of stock is damaged: "),
    ],
)
def test_who_owns_a_file_says_what_is_wrong_with_it(
    folder: Path, damage: Callable[[Path], None], reader: str, kind: type[Exception], said: str
) -> None:
    damage(folder / "b")
    read = pickle.loads(pickle.dumps(share(folder, READERS[reader]))).rows()  # noqa: S301 - as a task gets it
    assert [next(read).num_rows] == [2]
    with pytest.raises(kind, match=said) as raised:
        next(read)
    assert type(raised.value) is kind
