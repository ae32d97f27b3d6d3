"""Scans of large folders: files in changed directories are found at once, others by the next round (V42, E24, I18)."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import BACKFILL, NewTrigger, Trigger, TriggerStatus
from drainmark.jobs.scan.findings import ScanResult
from drainmark.jobs.scan.folder import identity_key, identity_of, uri_of
from drainmark.jobs.scan.folder_listing import FolderListing
from drainmark.jobs.scan.index import ScanLimits, ScanNote
from drainmark.jobs.scan.scanner import Scanner
from drainmark.orchestration.discovery.scan_recording import record_scan
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.registry.registry import Registry
from drainmark.resources.registry.scan_queries import RegistryScans
from drainmark.resources.registry.triggers import Triggers
from drainmark.resources.storage.object_store import ObjectStore

REGION = "app/lines"
LIMITS = ScanLimits(whole=20, rest_seconds=1e12, share=1e9, slice_seconds=1e9)
"""A folder of more than twenty files is large; one scan does a whole round, if a round is due."""

ROUNDS = replace(LIMITS, rest_seconds=0.0)


class Scene:
    """A folder and a registry; every call of `scan` is one scan."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "inbox"
        self.folder.mkdir()
        self.registry = Registry(f"sqlite:///{root}/registry.db")
        self.source = DirectoryScan(path=str(self.folder), recursive=True, settle=0.0)
        self.start(LIMITS)

    @classmethod
    def beside(cls, scene: Scene) -> Scene:
        """Return another process on the same folder and registry."""
        made = cls.__new__(cls)
        made.folder, made.registry, made.source = scene.folder, scene.registry, scene.source
        made.start(LIMITS)
        return made

    def start(self, limits: ScanLimits) -> None:
        """Begin a process that remembers nothing."""
        self.inputs = Inputs(ObjectStore(), limits=limits)

    def write(self, name: str, text: str = "x", *, age: float = 60.0) -> Path:
        """Write a file that seems to be some time old; its directory was changed just now."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (time.time() - age,) * 2)
        return path

    def scan(self, *, later: float = 100.0, **source: object) -> ScanResult:
        """Scan as if `later` seconds had passed, so that no directory is too young to be trusted."""
        scan = replace(self.source, **source)  # type: ignore[arg-type]
        return record_scan(self.registry, REGION, self.inputs, str(self.folder), scan, now=time.time() + later)

    def names(self, found: ScanResult) -> list[str]:
        return [str(Path(trigger.uri).relative_to(self.folder)) for trigger in found.new]

    def triggers(self, name: str) -> list[Trigger]:
        return self.registry.triggers.by_uri(REGION, str(self.folder / name))

    def commit(self, name: str) -> None:
        self.registry.progress.set_epoch(REGION, self.registry.region_info(REGION).epoch + 1)
        (trigger,) = self.triggers(name)
        self.registry.triggers.settle(REGION, self.registry.region_info(REGION).epoch, [(trigger.order_index, 1)])

    def no_round(self) -> None:
        """Prevent a new round, although the clock is set back."""
        RegistryScans(self.registry, REGION).keep(self.note.token, replace(self.note, began=0.0).to_text())
        for scanner in self.inputs._scanners.values():
            scanner._note = None

    @property
    def note(self) -> ScanNote:
        found = ScanNote.from_text(RegistryScans(self.registry, REGION).load_note())
        assert found is not None
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.registry.close()


def test_a_changed_file_counts_as_restored_if_the_old_file_itself_comes_back(scene: Scene) -> None:
    kept = scene.write("a.txt")
    scene.scan()
    scene.commit("a.txt")
    kept.rename(aside := scene.folder.parent / "aside")
    shutil.copy2(aside, kept)
    with pytest.raises(InputChanged) as changed:
        scene.scan(on_change="halt")
    assert "move the old file itself back, as a copy has another inode" in (changed.value.remedy or "")
    aside.rename(kept)
    assert scene.scan(on_change="halt").new == ()


@pytest.fixture
def large(scene: Scene) -> Scene:
    """Return a scanned folder of thirty files in three directories."""
    for number in range(30):
        scene.write(f"{'abc'[number % 3]}/{number:02d}.txt")
    assert scene.scan().new_count == 30
    assert scene.note.is_large
    return scene


# --- a small folder -----------------------------------------------------------------------------------------------


def test_a_small_folder_is_compared_whole_by_every_scan(scene: Scene) -> None:
    """Each scan sees new, rewritten, unreadable and restored files, independent of the memory of the scan before."""
    for number in range(20):
        scene.write(f"{number:02d}.txt")
    assert scene.names(scene.scan()) == [f"{number:02d}.txt" for number in range(20)]
    assert not scene.note.is_large
    assert (scene.scan().new_count, scene.scan().seen) == (0, 20)
    path = scene.write("07.txt", "rewritten in place")
    assert [uri for uri, _, _ in scene.scan().changed] == [str(path)]
    assert [trigger.size_bytes for trigger in scene.triggers("07.txt")] == [1, 18]
    (scene.folder / "08.txt").unlink()
    (scene.folder / "08.txt").mkdir()
    found = scene.scan()
    assert (found.new_count, found.seen, found.refused) == (0, 19, ())  # an empty directory


def test_a_file_with_a_time_in_the_future_is_taken_once_nobody_writes_to_it(scene: Scene) -> None:
    """An archive, or another machine, gave it that time."""
    path = scene.write("tomorrow.txt", age=-24 * 3600.0)
    assert scene.scan(later=0.0, settle=60.0).unsettled == 1
    found = scene.scan(settle=60.0)
    assert (scene.names(found), found.unsettled) == ([path.name], 0)


def test_a_scan_does_not_read_all_that_the_region_knows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("all known inputs were read")

    monkeypatch.setattr(Triggers, "known", refuse)
    monkeypatch.setattr(RegistryScans, "hashes", refuse)
    for number in range(30):
        scene.write(f"{number:02d}.txt")
    assert [scene.scan().new_count for _ in range(3)] == [30, 0, 0]


def test_a_rebuilt_registry_is_believed_and_not_the_memory_of_the_process(large: Scene) -> None:
    assert large.scan().new_count == 0
    large.registry.rebuild(REGION, epoch=1, next_id=1, triggers=[])
    assert large.scan().new_count == 30


# --- a large folder: found at once --------------------------------------------------------------------------------


def looked_into(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of the directories that are listed from now on."""
    listed: list[str] = []
    scandir = os.scandir

    def noting(path: str) -> os._ScandirIterator[str]:  # type: ignore[name-defined]
        listed.append(Path(path).name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noting)
    return listed


def test_directories_that_did_not_change_are_not_listed_again(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = looked_into(monkeypatch)
    assert (large.scan().new_count, listed) == (0, [])
    large.write("b/new.txt")
    assert large.names(large.scan()) == ["b/new.txt"]
    assert listed == ["b"]
    large.start(LIMITS)
    assert large.scan().new_count == 0
    assert listed == ["b"], "another process knows it from the registry"


def test_a_directory_that_was_just_touched_is_not_trusted(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change after the listing may fall into the same clock tick, so that listing proves nothing."""
    large.no_round()
    large.write("a/new.txt")
    listed = looked_into(monkeypatch)
    assert large.names(large.scan(later=0.0)) == ["a/new.txt"]
    large.scan(later=0.0)
    large.start(LIMITS)
    large.scan(later=100.0)
    large.scan(later=100.0)
    assert listed == ["a", "a", "a"], "until a listing that came late enough"


def test_new_directories_are_found_and_gone_ones_forgotten(large: Scene) -> None:
    large.write("d/e/f/deep.txt")
    assert large.names(large.scan()) == ["d/e/f/deep.txt"]
    large.write("d/e/f/deeper.txt")
    shutil.rmtree(large.folder / "a")
    assert large.names(large.scan()) == ["d/e/f/deeper.txt"]
    assert not [uri for uri in RegistryScans(large.registry, REGION).directories() if uri.endswith("/a")]
    large.write("a/again.txt")
    assert large.names(large.scan()) == ["a/again.txt"]


def test_a_directory_that_is_known_but_was_not_listed_in_time_is_listed_by_the_next_process(large: Scene) -> None:
    large.no_round()
    large.write("d/1.txt")
    assert large.names(large.scan(later=0.0)) == ["d/1.txt"]
    large.start(LIMITS)
    large.write("d/2.txt")
    assert large.names(large.scan()) == ["d/2.txt"]


def test_a_growing_file_is_taken_when_it_has_settled_though_its_directory_tells_nothing(large: Scene) -> None:
    large.write("a/growing.txt", age=-90.0)
    found = large.scan(settle=30.0)
    assert (found.new_count, found.unsettled) == (0, 1)
    assert large.names(large.scan(settle=30.0, later=200.0)) == ["a/growing.txt"]
    large.write("a/other.txt", age=-90.0)
    assert large.scan(settle=30.0).unsettled == 1
    large.start(LIMITS)
    assert large.names(large.scan(settle=30.0, later=200.0)) == ["a/other.txt"], "nor does the next process lose it"


def test_a_file_that_was_superseded_is_found_anew_at_once(large: Scene) -> None:
    """It was rewritten in place before it was read. The run noticed that, but no directory shows it (I2)."""
    large.registry.progress.set_epoch(REGION, 1)
    large.registry.triggers.mark(REGION, 1, [large.triggers("a/00.txt")[0].id], TriggerStatus.SUPERSEDED, "changed")
    large.write("a/00.txt", "changed")
    large.scan()
    assert [trigger.status for trigger in large.triggers("a/00.txt")] == [
        TriggerStatus.SUPERSEDED, TriggerStatus.PENDING,
    ]  # fmt: skip


def test_the_files_of_a_first_scan_are_in_order_however_many_they_are(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are sorted by runs on the disk and recorded in batches, with the result of one list."""
    monkeypatch.setattr("drainmark.jobs.scan.order.SortedFiles.__init__.__defaults__", (7,))
    names = [f"{'zyx'[number % 3]}/{number * 37 % 100:02d}.txt" for number in range(100)]
    for name in names:
        scene.write(name)
    assert scene.names(scene.scan()) == sorted(names)
    assert [trigger.uri for trigger in scene.registry.triggers.pending(REGION, 200)] == [
        str(scene.folder / name) for name in sorted(names)
    ]


# --- a large folder: found by a round -----------------------------------------------------------------------------


def backdated(large: Scene) -> str:
    """Return a new file that its directory does not show: its times are set back, as by a copy that keeps them."""
    known = RegistryScans(large.registry, REGION)
    large.write("a/new.txt", age=1e8)
    large.scan()
    with large.registry.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM drainmark_trigger WHERE uri LIKE '%new.txt'")
    assert str(large.folder / "a") in known.directories()
    return "a/new.txt"


def test_a_round_finds_a_late_file_that_no_directory_told_of(large: Scene) -> None:
    """Some file systems have imprecise times of directories."""
    name = backdated(large)
    large.start(LIMITS)
    assert large.scan().new_count == 0
    large.start(ROUNDS)
    assert large.names(large.scan()) == [name]


def test_a_backdated_file_is_found_though_its_directory_is_backdated_too(large: Scene) -> None:
    """`cp -a`, `rsync -t` and `tar` set a directory's mtime back, but nobody can set its ctime."""
    before = (large.folder / "a").stat()
    large.write("a/old.txt", age=1e8)
    os.utime(large.folder / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert large.names(large.scan()) == ["a/old.txt"]


@pytest.mark.seed("I8")
def test_a_renamed_file_is_a_new_one(large: Scene) -> None:
    (large.folder / "a/00.txt").rename(large.folder / "b/renamed.txt")
    assert large.names(large.scan()) == ["b/renamed.txt"]


@pytest.mark.parametrize("policy", ["halt", "ignore", "reprocess"])
def test_a_round_finds_a_committed_file_that_was_rewritten_in_place(large: Scene, policy: str) -> None:
    """I4; every scan from then on raises the error of "halt", not just one scan a round."""
    large.commit("b/01.txt")
    large.write("b/01.txt", "rewritten")
    assert not large.scan(on_change=policy).changed
    large.no_round()
    large.start(replace(ROUNDS, rest_seconds=3600.0))
    if policy == "halt":
        for _ in range(3):
            with pytest.raises(InputChanged):
                large.scan(on_change=policy)
    else:
        assert len(large.scan(on_change=policy).changed) == 1
    assert len(large.triggers("b/01.txt")) == (2 if policy == "reprocess" else 1)


def test_a_round_goes_on_in_slices_and_comes_round(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scan takes one step. When the steps are done, everything was compared, and a rest begins."""
    monkeypatch.setattr("drainmark.jobs.scan.folder_listing._CHUNK", 4)
    ticks = iter(range(10**6))
    large.start(replace(LIMITS, rest_seconds=1e6, share=1e9, slice_seconds=1.5))
    large.inputs.watched = _with_clock(large, lambda: float(next(ticks)))  # type: ignore[method-assign]
    for name in ("a/00.txt", "b/01.txt", "c/02.txt"):
        large.write(name, "rewritten")
    began = large.note.began
    found = [len(large.scan(later=2e6).changed) for _ in range(16)]
    assert sum(found) == 3
    assert max(found) == 1
    assert large.note.began > began
    assert large.note.at is None


def test_a_round_gets_through_one_large_folder_though_each_scan_is_another_process(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmark.jobs.scan.folder_listing._CHUNK", 4)
    for number in range(30):
        scene.write(f"{number:02d}.txt")
    scene.scan()
    scene.write([entry.name for entry in os.scandir(scene.folder)][-1], "rewritten")
    found = 0
    for _ in range(9):  # each takes one step
        scene.start(replace(LIMITS, rest_seconds=1e6, share=1e9, slice_seconds=1.5))
        clock = map(float, range(10**6)).__next__
        scene.inputs.watched = _with_clock(scene, clock)  # type: ignore[method-assign]
        found += len(scene.scan(later=2e6).changed)
    assert (found, scene.note.at) == (1, None)


def _with_clock(scene: Scene, clock: object) -> object:
    memory = RegistryScans(scene.registry, REGION)
    listing = FolderListing(scene.folder, scene.source, memory)
    scanner = Scanner(listing, scene.source, memory, limits=scene.inputs.limits, monotonic=clock)  # type: ignore[arg-type]
    return lambda memory, location, scan, *, now: scanner.batches(now)


def test_a_folder_that_was_emptied_is_a_small_one_again(large: Scene) -> None:
    shutil.rmtree(large.folder / "a")
    shutil.rmtree(large.folder / "b")
    for number in range(5):
        (large.folder / f"c/{2 + 3 * number:02d}.txt").unlink()
    large.start(ROUNDS)
    large.scan()
    assert not large.note.is_large
    large.write("c/17.txt", "rewritten")
    assert len(large.scan().changed) == 1


def test_another_process_forgets_the_large_folder_as_well(large: Scene) -> None:
    """Else it would keep a part of the index, and a third process would find nothing below that part."""
    other = Scene.beside(large)
    other.scan()
    for name in "ab":
        shutil.rmtree(large.folder / name)
    for number in range(5):
        (large.folder / f"c/{2 + 3 * number:02d}.txt").unlink()
    large.start(ROUNDS)
    large.scan()
    other.write("c/sub/late.txt")
    other.scan()
    assert not large.note.is_large
    large.start(LIMITS)
    large.write("c/sub/later.txt")
    assert large.names(large.scan()) == ["c/sub/later.txt"]


def test_what_was_not_recorded_is_found_again(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that fails between finding and recording has seen nothing."""
    large.write("a/new.txt")
    with monkeypatch.context() as patch:
        patch.setattr(Triggers, "add", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError):
            large.scan()
    assert large.names(large.scan()) == ["a/new.txt"]


# --- errors while a scan looks ------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, directory: Path, error: int, call: str = "scandir") -> None:
    """Let the next call for a directory fail, once."""
    real, left = getattr(os, call), [error]

    def call_once(path: object, **options: object) -> object:
        if os.fspath(path) == str(directory) and left:  # type: ignore[call-overload]
            raise OSError(left.pop(), "as was wished", str(directory))
        return real(path, **options)

    monkeypatch.setattr(os, call, call_once)


@pytest.mark.parametrize(("call", "error"), [("scandir", errno.EIO), ("scandir", errno.EMFILE), ("stat", errno.ESTALE)])
@pytest.mark.parametrize("is_another_process", [False, True])
def test_a_directory_that_could_not_be_listed_is_listed_by_the_next_scan(
    large: Scene, monkeypatch: pytest.MonkeyPatch, call: str, error: int, is_another_process: bool
) -> None:
    """I10: the error passes, and the hidden files are found without a round."""
    large.write("a/new.txt")
    with monkeypatch.context() as patch:
        failing(patch, large.folder / "a", error, call)
        found = large.scan()
    assert (found.new_count, [uri for uri, _ in found.refused]) == (0, [str(large.folder / "a")])
    if is_another_process:
        large.start(LIMITS)
    assert large.names(large.scan()) == ["a/new.txt"]


def test_a_directory_that_goes_while_it_is_listed_is_no_refusal(large: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    large.write("a/new.txt")
    failing(monkeypatch, large.folder / "a", errno.ENOENT)
    assert large.scan().refused == ()
    assert large.names(large.scan()) == ["a/new.txt"]


@pytest.mark.parametrize(("error", "refused"), [(errno.ENOENT, []), (errno.EACCES, ["b"])])
def test_a_small_scan_outlives_a_directory_that_goes_or_cannot_be_listed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: int, refused: list[str]
) -> None:
    for name in ("a", "b", "c"):
        scene.write(f"{name}/1.txt")
    failing(monkeypatch, scene.folder / "b", error)
    found = scene.scan()
    assert scene.names(found) == ["a/1.txt", "c/1.txt"]
    assert [Path(uri).name for uri, _ in found.refused] == refused
    assert scene.names(scene.scan()) == ["b/1.txt"]


@pytest.mark.parametrize("is_another_process", [False, True])
def test_growing_files_are_not_lost_however_many_they_are(
    large: Scene, monkeypatch: pytest.MonkeyPatch, is_another_process: bool
) -> None:
    """There are more than a scan remembers by name: their directories are listed again until the files have settled."""
    monkeypatch.setattr("drainmark.jobs.scan.folder_listing._LOOKED_AT", 5)
    names = [f"{'abc'[number % 3]}/growing-{number:02d}.txt" for number in range(18)]
    for name in names:
        large.write(name, age=-90.0)
    for _ in range(2):
        assert large.scan(settle=30.0).unsettled == 18
    if is_another_process:
        large.start(LIMITS)
    assert large.names(large.scan(settle=30.0, later=200.0)) == sorted(names)


# --- a new start while a scan looks -------------------------------------------------------------------------------


def under_way(large: Scene) -> Iterator[ScanResult]:
    """Return a scan that has looked at everything, but has not saved its memory yet."""
    large.no_round()
    large.start(replace(ROUNDS, rest_seconds=3600.0))
    large.write("d/new.txt")
    memory = RegistryScans(large.registry, REGION)
    batches = large.inputs.watched(memory, str(large.folder), large.source, now=time.time() + 100.0)
    assert large.names(next(batches)) == ["d/new.txt"]
    return batches


def test_a_scan_keeps_nothing_of_a_region_that_was_rebuilt_under_it(large: Scene) -> None:
    """H27: stamps and a note that come back would hide from the next scan all that the repair has forgotten."""
    batches = under_way(large)
    large.registry.rebuild(REGION, epoch=1, next_id=1, triggers=[])
    assert list(batches) == []
    memory = RegistryScans(large.registry, REGION)
    assert (memory.load_note(), memory.directories()) == (None, {})
    assert large.scan().new_count == 31


def test_a_scan_keeps_nothing_where_another_folder_was_begun_under_it(large: Scene, tmp_path: Path) -> None:
    batches = under_way(large)
    other = tmp_path / "inbox-of-another"
    for number in range(30):
        large.write(f"{other}/{number % 3}/{number:02d}.txt")
    inputs = Inputs(ObjectStore(), limits=LIMITS)
    found = record_scan(large.registry, REGION, inputs, str(other), large.source, now=time.time() + 100.0)
    assert found.new_count == 30
    before = large.note
    assert list(batches) == []
    assert large.note == before
    kept = RegistryScans(large.registry, REGION).directories()
    assert sorted(kept) == [str(other), *(f"{other}/{number}" for number in range(3))]


def test_a_directory_that_is_not_below_the_folder_is_not_listed(
    large: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version may have saved such a directory, under the note of another folder."""
    large.write(f"{tmp_path}/inbox2/strange.txt")
    RegistryScans(large.registry, REGION).keep(large.note.token, None, {f"{tmp_path}/inbox2": "null"})
    large.start(LIMITS)
    listed = looked_into(monkeypatch)
    assert (large.scan().new_count, listed) == (0, [])


def asked_for(scene: Scene, path: Path, *, output: str = "", status: TriggerStatus = TriggerStatus.SUPERSEDED) -> None:
    """Add a file as `backfill` does, and let it give way as a run does that finds it changed or gone."""
    identity = identity_of(path.stat())
    new = NewTrigger(
        uri=uri_of(str(path)), identity=identity, identity_key=identity_key(identity), size_bytes=1, output=output,
        origin=BACKFILL,
    )  # fmt: skip
    scene.registry.triggers.add(REGION, [new])
    scene.registry.progress.set_epoch(REGION, epoch := scene.registry.region_info(REGION).epoch + 1)
    (trigger,) = scene.registry.triggers.by_uri(REGION, new.uri)
    scene.registry.triggers.mark(REGION, epoch, [trigger.id], status, "changed")


@pytest.mark.parametrize("name", ["../archive/may.csv", "may.dat", "caf\udce9.old"])
def test_a_file_that_was_asked_for_and_changed_is_taken_again_wherever_it_lies(scene: Scene, name: str) -> None:
    path = Path(os.path.abspath(scene.write(name, age=1e8)))
    asked_for(scene, path)
    path.write_text("longer")
    assert scene.scan(pattern="*.txt", start_from="2026-01-01", later=0.0, settle=60.0).unsettled == 1
    assert scene.registry.pending_count(REGION) == 0
    assert len(scene.scan(pattern="*.txt", start_from="2026-01-01").changed) == 1
    (trigger,) = scene.registry.triggers.pending(REGION, 9)
    assert (trigger.uri, trigger.size_bytes, trigger.origin) == (uri_of(str(path)), 6, BACKFILL)
    assert scene.scan(pattern="*.txt").changed == (), "it is taken once"


def test_a_file_that_was_asked_for_comes_again_in_its_output(scene: Scene) -> None:
    outputs = {"orders": "*.csv", "payments": "*.txt"}
    path = scene.write("may.csv")
    asked_for(scene, path, output="payments")
    path.write_text("longer")
    scene.scan(outputs=outputs)
    assert [(each.uri, each.output) for each in scene.registry.triggers.pending(REGION, 9)] == [(str(path), "payments")]


def test_a_file_that_was_asked_for_and_was_missing_is_taken_when_it_is_back(scene: Scene) -> None:
    path = Path(os.path.abspath(scene.write("../archive/may.csv")))
    asked_for(scene, path, status=TriggerStatus.MISSING)
    aside = path.rename(path.with_name("aside"))
    scene.scan()
    assert scene.registry.pending_count(REGION) == 0
    aside.rename(path)
    scene.scan()
    assert [each.uri for each in scene.registry.triggers.pending(REGION, 9)] == [str(path)]
