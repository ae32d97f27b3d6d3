"""Files that are written under a unique name: a file is whole or absent, even if its writer dies (D11)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from drainmark.jobs.errors import InputMissing
from drainmark.jobs.failpoints import FilePoint
from drainmark.jobs.operators.sources.files.directory_source import LIST, files_of
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.resources.delta.upkeep.garbage import garbage_of
from drainmark.resources.delta.upkeep.log_retention import REMOVED, removed_since
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.storage.folder import PART, LocalFolder

ROOT = Path(__file__).parents[2]
KEEPING = """
import resource, sys
from pathlib import Path
from drainmark.jobs import failpoints
from drainmark.resources.storage.folder import LocalFolder
from drainmark.resources.inputs.source_access import RegionAccess

access = RegionAccess("app/start", None, LocalFolder(Path(sys.argv[1])), None)
if sys.argv[2] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
else:
    failpoints.arm(sys.argv[2])
access.keep_list("left", 3, sys.stdin.read())
"""


@pytest.fixture
def access(tmp_path: Path) -> RegionAccess:
    nothing: Any = None
    return RegionAccess("app/start", nothing, LocalFolder(tmp_path), nothing)


def lines(number: int) -> str:
    file = {"uri": "a", "identity": {}, "identity_key": "k", "size_bytes": 1, "output": ""}
    return "\n".join(json.dumps({**file, "order_index": place}) for place in range(number))


def listing(name: str, files: int) -> Slice:
    return Slice(start=None, end={"order": files}, size_bytes=files, facts={"files": files, LIST: name})


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(PART)]


@pytest.mark.parametrize("end", [f"{FilePoint.WRITTEN.value}:kill", "full"])
def test_a_list_whose_writer_died_is_written_again(access: RegionAccess, tmp_path: Path, end: str) -> None:
    """A name that exists is taken for a whole list: half a list would skip files for ever."""
    died = subprocess.run(
        [sys.executable, "-c", KEEPING, str(tmp_path), end], cwd=ROOT, input=lines(20), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert died.returncode == 1 if end == "full" else died.returncode == -9, died.stderr
    assert len(parts(tmp_path)) == (end != "full")
    name = access.keep_list("left", 3, lines(20))
    assert len(files_of(listing(name, 20), access)) == 20


def test_a_list_that_was_cut_off_is_missed(access: RegionAccess, tmp_path: Path) -> None:
    name = access.keep_list("left", 3, lines(3))
    kept = tmp_path / "slices" / name
    whole = kept.read_bytes()
    for torn in (b"", whole[:50], whole[: whole.rindex(b"\n")]):
        kept.write_bytes(torn)
        with pytest.raises(InputMissing):
            files_of(listing(name, 3), access)
    assert access.keep_list("left", 3, lines(3)) == name, "one that a crash of an earlier version cut off is mended"
    assert len(files_of(listing(name, 3), access)) == 3
    with pytest.raises(InputMissing):
        files_of(listing(name, 4), access)


def test_what_is_there_is_not_written_over_and_nothing_is_left(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.write("a/b", pa.py_buffer(b"first"))
    with pytest.raises(FileExistsError):
        folder.write("a/b", pa.py_buffer(b"second"))
    assert (tmp_path / "a" / "b").read_bytes() == b"first"
    assert parts(tmp_path) == []


def test_half_a_file_that_a_crash_left_is_no_file_and_goes(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path), pa.table({"n": [1]}))
    folder = LocalFolder(tmp_path)
    (tmp_path / REMOVED).mkdir()
    (tmp_path / REMOVED / f".1{PART}").write_text('[{"pa')
    assert removed_since(folder, 0.0) == set()
    attempt = tmp_path / "_staged" / "1-attempt"
    attempt.mkdir(parents=True)
    for name in (f".2{PART}", "kept.parquet"):
        (attempt / name).write_text("x")
    found = garbage_of(folder, "t", named={"_staged/1-attempt/kept.parquet"}, below_epoch=2, now=1e12)
    assert [name for name in found.files if name.startswith("_staged")] == [f"_staged/1-attempt/.2{PART}"]
