"""Symbolic links in input: refused at every place that looks for files, unless the source says that they are files.

Otherwise a person who may put a link into a folder could have any file read that this process may read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reads import read_here

import drainmark as dm
from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.operators.sources.slices import SliceLimit
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.scan.folder import IS_LINK
from drainmark.jobs.scan.folder_listing import FolderListing
from drainmark.jobs.scan.index import ScanLimits
from drainmark.jobs.scan.scanner import scan_once
from drainmark.jobs.tasks.file_ranges import InputFile
from drainmark.orchestration.discovery.scan_recording import record_scan
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.inputs import backfill
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.registry.registry import Registry
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = pytest.mark.seed("RT4")

REGION = "app/lines"
CONTENT = "db:5432:*:admin:hunter2\n"


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Return a folder with a file, and with links to a file and to a folder outside of it, and to its own file."""
    folder = tmp_path / "inbox"
    (folder / "below").mkdir(parents=True)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "pgpass.txt").write_text(CONTENT)
    (folder / "1.txt").write_text("mine\n")
    (folder / "2.txt").symlink_to(secrets / "pgpass.txt")
    (folder / "below" / "3.txt").symlink_to(folder / "1.txt")
    (folder / "linked").symlink_to(secrets)
    for path in (folder / "1.txt", secrets / "pgpass.txt"):
        os.utime(path, (time.time() - 60,) * 2)
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(f"sqlite:///{tmp_path}/registry.db")
    yield made
    made.close()


def scanned(registry: Registry, folder: Path, whole: int = 100, **source: Any) -> tuple[set[str], dict[str, str]]:
    """Scan as runs and ticks do; return the pending names, and the refused names with their reasons."""
    scan = dm.DirectoryScan(path=str(folder), recursive=True, settle=0, **source)
    inputs = Inputs(ObjectStore(), limits=ScanLimits(whole=whole))
    found = record_scan(registry, REGION, inputs, str(folder), scan, now=time.time() + 100)
    pending = registry.triggers.pending(REGION, limit=99)
    names = {os.path.relpath(trigger.uri, folder) for trigger in pending}
    return names, {os.path.relpath(uri, folder): why for uri, why in found.refused}


@pytest.mark.parametrize("whole", [100, 1], ids=["small", "large"])
def test_a_scan_takes_no_link(registry: Registry, inbox: Path, whole: int) -> None:
    names, refused = scanned(registry, inbox, whole)
    assert names == {"1.txt"}
    assert {name: why == IS_LINK for name, why in refused.items()} == {"2.txt": True, "below/3.txt": True,
                                                                      "linked": True}  # fmt: skip


def test_a_source_may_say_that_links_are_files(registry: Registry, inbox: Path) -> None:
    """Links to folders are not accepted."""
    names, refused = scanned(registry, inbox, follow_links=True)
    assert names == {"1.txt", "2.txt", "below/3.txt"}
    assert refused == {"linked": "is no regular file"}


def test_the_folder_itself_may_be_a_link(registry: Registry, inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(inbox)
    names, _ = scanned(registry, tmp_path / "elsewhere")
    assert names == {"1.txt"}
    source = dm.DirectoryScan(path="x", settle=0)
    looked = scan_once(FolderListing(tmp_path / "elsewhere", source), source, {}, now=time.time())
    assert [Path(trigger.uri).name for trigger in looked.new] == ["1.txt"]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_that_takes_a_files_place_before_it_is_read_is_not_read(
    registry: Registry, inbox: Path, tmp_path: Path, what: str
) -> None:
    (inbox / "deep").mkdir()
    (inbox / "deep" / "pgpass.txt").write_text(CONTENT)  # of the same size
    os.utime(inbox / "deep" / "pgpass.txt", ns=((inbox.parent / "secrets" / "pgpass.txt").stat().st_mtime_ns,) * 2)
    scanned(registry, inbox)
    (trigger,) = (each for each in registry.triggers.pending(REGION, limit=9) if each.uri.endswith("deep/pgpass.txt"))
    assert trigger.status is TriggerStatus.PENDING
    inputs = Inputs(ObjectStore())
    inputs.place([(trigger, tmp_path / "before")])
    if what == "file":
        (inbox / "deep" / "pgpass.txt").unlink()
        (inbox / "deep" / "pgpass.txt").symlink_to(tmp_path / "secrets" / "pgpass.txt")
    else:
        (inbox / "deep").rename(tmp_path / "away")
        (inbox / "deep").symlink_to(tmp_path / "secrets")
    error = InputMissing if what == "file" else InputChanged
    with pytest.raises(error) as refused:
        inputs.place([(trigger, tmp_path / "after")])
    assert trigger.uri in refused.value.message
    assert not (tmp_path / "after").exists()
    with pytest.raises(error):  # swapped during the read
        inputs.check([trigger])


def declare(**source: Any) -> Callable[[], None]:
    def app() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text", **source))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(lines, dm.DeltaAppend("o"))

    return app


def link(result: Result, name: str, target: str | Path) -> Path:
    path = result.home.parent / "inbox" / "lines" / name
    path.symlink_to(target)
    return path


@pytest.mark.spark
def test_a_run_and_a_backfill_leave_links_alone(run_app: Callable[..., Result]) -> None:
    """The region leaves links alone; one of them leads to a file of /proc, with size 0 although it has content."""
    result = run_app(declare(), {"1.txt": "mine\n"})
    secret = result.home.parent / "pgpass"
    secret.write_text(CONTENT)
    os.utime(secret, (time.time() - 60,) * 2)
    links = [link(result, "2.txt", secret), link(result, "3.txt", "/proc/self/status")]
    result.add({"4.txt": "mine, too\n"}).run()
    assert result.sink("o") == [
        {"value": "mine", "source_file": str(links[0].with_name("1.txt"))},
        {"value": "mine, too", "source_file": str(links[0].with_name("4.txt"))},
    ]
    queued = plan_queue(result.workplace, result.region.name, Wanted(pattern=f"{links[0].parent}/*.txt")).carry_out(
        result.workplace
    )
    told = {Path(each["file"]).name: each["reason"] for each in queued["refused"]}
    assert told == {"2.txt": IS_LINK, "3.txt": IS_LINK}
    assert queued["queued"] == 0


@pytest.mark.spark
def test_where_links_are_followed_what_is_no_file_of_a_disk_is_quarantined(run_app: Callable[..., Result]) -> None:
    result = run_app(declare(follow_links=True), {"1.txt": "mine\n"})
    linked = link(result, "2.txt", "/proc/version")
    with linked.open():  # such a file is as old as the first look at it, unless nobody holds it and it is forgotten
        time.sleep(0.6)  # so it needs time to settle
        result.run()
    assert [row["value"] for row in result.sink("o")] == ["mine"]
    assert ["more than its 0 bytes" in row["reason"] for row in result.quarantine()] == [True]
    assert result.status["state"] != "HALTED"


def test_more_than_its_size_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.data").symlink_to("/proc/self/status")
    file = InputFile(number=1, path=str(tmp_path / "x.data"), size=0)
    found = read_here([file], Expected(format="text", columns=None))
    assert "more than its 0 bytes" in str(found.verdicts[1].refused)
    assert not found.rows.names


@pytest.mark.parametrize("place", ["named", "glob", "deep glob", "folder", "literal"])
def test_a_backfill_goes_through_no_linked_folder(inbox: Path, place: str) -> None:
    """A folder that the pattern names without a star is the operator's decision."""
    pattern = {
        "named": inbox / "linked" / "pgpass.txt", "glob": inbox / "*" / "*.txt", "deep glob": inbox / "**" / "*.txt",
        "folder": inbox, "literal": inbox / "linked" / "*.txt",
    }[place]  # fmt: skip
    wanted = Wanted(pattern=str(pattern))
    found = dict(backfill._files(wanted, dm.DirectoryScan(path=str(inbox), recursive=True, settle=0), str(inbox)))
    secret = found.get(str(inbox / "linked" / "pgpass.txt"))
    if place in ("named", "literal"):
        assert secret is not None
        assert not isinstance(secret, str)
    elif place != "folder" or secret is not None:
        assert secret == f"lies behind a link to a folder, {inbox / 'linked'}"


class Here:
    """A reach of one folder."""

    region = REGION

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, path: str) -> Path:
        return self.folder / path


def test_a_followed_file_is_no_link_unless_its_source_says_so(inbox: Path) -> None:
    access: Any = Here(inbox)
    source = dm.FileSource(path="2.txt")
    with pytest.raises(InputChanged) as refused:
        source.next_slice(None, access, SliceLimit(source="lines"))
    assert refused.value.facts["trigger"] == str(inbox / "2.txt")
    assert (
        dm.FileSource(path="2.txt", follow_links=True).next_slice(None, access, SliceLimit(source="lines")) is not None
    )
    rotated = dm.FileSource(path="1.txt", rotated="1.txt.*", rotate_wait=0)
    (inbox / "1.txt.1").symlink_to(inbox / "2.txt")
    piece = rotated.next_slice(None, access, SliceLimit(source="lines"))
    assert piece is not None
    assert piece.end["offset"] == len("mine\n")
    os.mkfifo(inbox / "pipe")
    with pytest.raises(InputChanged):
        dm.FileSource(path="pipe").next_slice(None, access, SliceLimit(source="lines"))
