"""One suite over every two-level store, and the checkpoints of an operator in each of them (V155–V163, E17)."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path

import pytest
from places import BUCKET, make_bucket, store_at

from drainmark.jobs import failpoints
from drainmark.jobs.errors import Fenced, ObjectMissing
from drainmark.jobs.errors.operator_code import CheckpointUnreadable, ValueTooLarge
from drainmark.jobs.failpoints import InjectedFailure, StorePoint
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.id_runs import Ids, States
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.hosting.checkpoint_cleanup import entry_of, forget, forgotten
from drainmark.jobs.state.handlers.checkpoint import CheckpointReader, CheckpointWriter, Header
from drainmark.jobs.state.handlers.data_store import VALUE_LIMIT, DataStore, DataStoreEntry
from drainmark.jobs.state.handlers.stored_checkpoints import StoredCheckpoints
from drainmark.resources.checkpoints.data_stores import BucketDataStore, DirectoryDataStore, data_store_of
from drainmark.resources.checkpoints.delta_data_store import DeltaDataStore
from drainmark.resources.settings import Settings

LIMIT = 4096
CHUNK = 16
Opener = Callable[[], DataStore]


@pytest.fixture(params=["delta", "directory", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens the same store, empty at first; each call opens it as another process would."""
    if request.param == "delta":
        return lambda: DeltaDataStore(tmp_path / "states", LIMIT)
    if request.param == "directory":
        return lambda: DirectoryDataStore(tmp_path / "states", LIMIT)
    server, _ = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_credentials")
    make_bucket(server)
    prefix = uuid.uuid4().hex
    return lambda: BucketDataStore(store_at(server), BUCKET, prefix, LIMIT)


NO_BUCKET = pytest.mark.parametrize(
    "opened", ["delta", "directory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
"""In a bucket only with the slow tests: these need of a bucket only pairs and entries, which other tests show."""


# --- entries and pairs --------------------------------------------------------------------------------------------


@pytest.mark.seed("V156", "V157", "V159")
def test_entries_are_made_found_and_deleted_by_name(opened: Opener) -> None:
    store = opened()
    names = ["app/counter", "app/counter/2", "app-counter", "Ä ö/../.. \n", "x" * 300]
    for name in names:
        assert not store.exists(name)
        store.create(name).put(b"who", name.encode())
    again = opened()
    assert [again.create(name).get(b"who").decode() for name in names] == names, "names do not run into each other"
    again.delete(names[0])
    assert not opened().exists(names[0])
    assert all(opened().exists(name) for name in names[1:])
    again.delete(names[0])
    again.delete("never was")


@pytest.mark.seed("V156", "V157")
def test_pairs_are_put_got_and_deleted_by_key(opened: Opener) -> None:
    entry = opened().create("app/op")
    keys = [b"1.0", b"head", b"", b"\x00\xff/..", b"UPPER", b"upper", b"k" * 500, b"a.part", b"x-00"]
    for key in keys:
        assert not entry.exists(key)
        with pytest.raises(KeyError):
            entry.get(key)
    entry.put_all({key: b"of " + key for key in keys})
    found = opened().create("app/op")
    assert [found.get(key) for key in keys] == [b"of " + key for key in keys]
    found.put(b"1.0", b"")
    assert entry.get(b"1.0") == b""
    entry.delete_all([b"head", b"not there"])
    assert [key for key in keys if not found.exists(key)] == [b"head"]
    found.put(b"head", b"again")
    assert opened().create("app/op").get(b"head") == b"again"


@pytest.mark.seed("V156")
def test_a_value_above_the_limit_is_refused_whole(opened: Opener) -> None:
    entry = opened().create("app/op")
    entry.put(b"fits", b"x" * LIMIT)
    with pytest.raises(ValueTooLarge):
        entry.put_all({b"small": b"x", b"large": b"x" * (LIMIT + 1)})
    assert not entry.exists(b"small")
    assert entry.get(b"fits") == b"x" * LIMIT


@pytest.mark.seed("V163")
def test_an_entry_made_anew_is_empty_and_old_handles_see_nothing(opened: Opener) -> None:
    old = opened().create("app/op")
    old.put(b"key", b"old")
    opened().delete("app/op")
    for use in (lambda: old.get(b"key"), lambda: old.put(b"key", b"zombie"), lambda: old.delete(b"key")):
        with pytest.raises(ObjectMissing):
            use()
    new = opened().create("app/op")
    assert not new.exists(b"key")
    with pytest.raises(ObjectMissing):
        old.put(b"key", b"zombie")
    assert not opened().create("app/op").exists(b"key")


@pytest.mark.seed("V158", "V161")
def test_several_write_at_once(opened: Opener) -> None:
    """Operators of one application share a store; each has its entry."""

    def write(name: str) -> None:
        entry = opened().create(name)
        for number in range(4):
            entry.put_all({b"%d" % number: name.encode(), b"last": b"%d" % number})

    names = [f"app/op{number}" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, names))
    store = opened()
    for name in names:
        entry = store.create(name)
        assert [entry.get(b"%d" % number) for number in range(4)] == [name.encode()] * 4
        assert entry.get(b"last") == b"3"


def test_a_setting_chooses_the_store(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", project_root=tmp_path)
    assert isinstance(data_store_of("states", settings), DirectoryDataStore)
    assert isinstance(data_store_of("delta://states", settings), DeltaDataStore)
    found = data_store_of("s3://bucket/some/prefix", settings)
    assert isinstance(found, BucketDataStore)
    assert (found.bucket, found.prefix, found.value_limit) == ("s3://bucket", "some/prefix", VALUE_LIMIT)


def test_delta_rewrites_what_counts(tmp_path: Path) -> None:
    """Deleted pairs leave the disk, and the number of files stays bounded (V163)."""
    store = DeltaDataStore(tmp_path / "states", LIMIT)
    entry = store.create("app/op")
    for number in range(70):
        entry.put(b"counter", b"%d" % number * 100)
    assert entry.get(b"counter") == b"69" * 100
    assert store.create("app/op").get(b"counter") == b"69" * 100
    assert len(list((tmp_path / "states").rglob("*.parquet"))) < 20


# --- checkpoints in them ------------------------------------------------------------------------------------------


def written(number: int, values: Sequence[object], previous: Header | None = None) -> CheckpointWriter:
    writer = CheckpointWriter(sequence_id=number, previous=previous, chunk_bytes=CHUNK)
    for value in values:
        writer.write(value)
    writer.finish()
    return writer


def content(number: int) -> list[object]:
    """Return values: their first chunks never change, their number of chunks does."""
    return [b"the same in every one", number, "x" * (number % 5 * 20)]


def chain(numbers: Sequence[int], previous: Header | None = None) -> list[CheckpointWriter]:
    found = []
    for number in numbers:
        found.append(written(number, content(number), previous))
        previous = found[-1].finish()
    return found


def values(reader: CheckpointReader) -> list[object]:
    found = []
    while not reader.is_at_end:
        found.append(reader.read())
    return found


def checkpoints(opened: Opener) -> StoredCheckpoints:
    return StoredCheckpoints(opened().create("app/op"))


@pytest.mark.seed("V120", "V160", "V155")
def test_every_id_is_read_back(opened: Opener) -> None:
    stored = checkpoints(opened)
    first = chain([3, 4, 7])
    stored.save(first)
    stored.save(chain([9], first[-1].finish()))
    again = checkpoints(opened)
    assert {number: values(again.load(number)) for number in (3, 4, 7, 9)} == {n: content(n) for n in (3, 4, 7, 9)}
    with pytest.raises(CheckpointUnreadable):
        again.load(5)
    assert first[1].finish().written_at[0] == 3, "a chunk that did not change is stored once"


@NO_BUCKET
@pytest.mark.seed("E17", "V163", "N12")
def test_retiring_an_id_retires_all_below_it(opened: Opener) -> None:
    """The newest state up to that id stays, with the chunks that it shares with older states."""
    stored = checkpoints(opened)
    stored.save(chain([1, 2, 3, 5, 8]))
    assert stored.retire(4) == 2
    again = checkpoints(opened)
    assert again.retire(4) == 0
    for number in (1, 2):
        with pytest.raises(CheckpointUnreadable):
            again.load(number)
    assert {number: values(again.load(number)) for number in (3, 5, 8)} == {n: content(n) for n in (3, 5, 8)}
    assert again.entry.exists(b"1.1"), "a chunk that the kept ones refer to"
    assert not again.entry.exists(b"1.3")
    different = written(9, ["nothing of the others"], again.load(8).header)
    again.save([different])
    assert again.retire(9) == 3
    assert not any(again.entry.exists(b"%d.%d" % (number, chunk)) for number in (1, 2, 3, 5, 8) for chunk in range(9))
    assert values(checkpoints(opened).load(9)) == ["nothing of the others"]


@NO_BUCKET
@pytest.mark.seed("V163", "E16")
@pytest.mark.parametrize("to", [0, 2, *(pytest.param(to, marks=pytest.mark.slow) for to in (1, 3))])
def test_what_is_rewound_is_withdrawn(opened: Opener, to: int) -> None:
    stored = checkpoints(opened)
    made = chain([1, 2, 3])
    stored.save(made)
    again = checkpoints(opened)
    again.withdraw(to)
    previous = again.load(to).header if to else None
    for number in (1, 2, 3):
        assert again.entry.exists(b"%d.0" % number) == (number <= to)
    again.save(chain([6], previous))
    assert values(checkpoints(opened).load(6)) == content(6)
    assert checkpoints(opened).retire(6) == to
    assert values(checkpoints(opened).load(6)) == content(6)


def state(operator: str, label: str = "") -> RegionTable:
    name = f"state/app/{operator}{label and '.'}{label}"
    return RegionTable(name=name, role=TableRole.CHANGES, operator=operator, schema_json="{}")


@NO_BUCKET
@pytest.mark.seed("V159", "V163")
def test_an_entry_is_deleted_when_its_job_is_over(opened: Opener) -> None:
    """The state was dropped, and no rewind goes back before that; or the operator left, and a person confirms it."""
    store = opened()
    tables = [state("op", "new"), state("stays")]
    history = RegionHistory(
        states=States(reduce(Ids.with_id, range(1, 21), Ids())), tables=tuple(tables),
        former=(state("op"), state("op", "old"), state("left")),
        generations={"op": ((5, "old"), (9, "new"))},
    )  # fmt: skip
    entries = [entry_of(table.name) for table in (*history.tables, *history.former)]
    for entry in entries:
        StoredCheckpoints(store.create(entry)).save(chain([1, 2]))
    assert forget(history, store, horizon=20) == [], "a rewind to 1 needs the first of them all"
    assert forget(history, store, horizon=13) == ["app/op"], "7 is the oldest"
    assert forget(history, store, horizon=13) == []
    assert forget(history, store, horizon=11) == ["app/op.old"]
    assert [entry for entry in entries if opened().exists(entry)] == ["app/op.new", "app/stays", "app/left"]
    assert forgotten(history, store, horizon=11, left={"op", "stays"}) == ["app/left"]
    assert opened().exists("app/left"), "only looked"
    assert forget(history, store, horizon=11, left={"op", "stays"}) == ["app/left"]
    assert set(forget(history, store, horizon=11, left=())) == {"app/op.new", "app/stays"}, "the region has left"
    assert not any(opened().exists(entry) for entry in entries)


@NO_BUCKET
@pytest.mark.seed("V158", "V167")
@pytest.mark.parametrize("point", list(StorePoint), ids=str)
def test_a_crash_between_two_writes_leaves_the_last_state(opened: Opener, point: StorePoint) -> None:
    """Chunks are written first, the header last. The next opening finishes the write, or removes all of it."""
    stored = checkpoints(opened)
    made = chain([1, 2])
    stored.save(made)
    failpoints.arm(f"{point.value}:raise")
    with pytest.raises(InjectedFailure):
        stored.retire(2) if point is StorePoint.RETIRE_BEFORE else stored.save(chain([3], made[-1].finish()))
    again = checkpoints(opened)
    assert values(again.load(2)) == content(2)
    is_whole = point is StorePoint.CHUNKS_AFTER
    if is_whole:
        assert values(again.load(3)) == content(3)
    else:
        with pytest.raises(CheckpointUnreadable):
            again.load(3)
    again.withdraw(2)
    assert not any(again.entry.exists(b"3.%d" % chunk) for chunk in range(9))
    again.save(chain([4], made[-1].finish()))
    again.retire(4)
    final = checkpoints(opened)
    assert values(final.load(4)) == content(4)
    assert not any(final.entry.exists(b"%d.0" % number) for number in (1, 2, 3))


@pytest.mark.seed("V158", "V160", "V167")
@pytest.mark.parametrize("nth", [2, *(pytest.param(nth, marks=pytest.mark.slow) for nth in (1, 3))])
def test_a_crash_between_the_headers_of_a_group_leaves_the_last_state(opened: Opener, nth: int) -> None:
    """The headers are written in parallel: any of them may be there. The committed states are not touched."""
    stored = checkpoints(opened)
    made = chain([1, 2])
    stored.save(made)
    group = chain([3, 4, 5], made[-1].finish())
    writes = 2 if isinstance(opened(), DeltaDataStore) else 1 + 2 * len(group) + sum(len(w.changed) for w in group)
    failpoints.arm(f"{StorePoint.PAIR_BEFORE.value}:raise:{writes + (1 if writes == 2 else nth)}")
    with pytest.raises(InjectedFailure):
        stored.save(group)
    assert failpoints.unreached() == ()
    again = checkpoints(opened)
    again.withdraw(2)
    assert values(again.load(2)) == content(2)
    again.save(chain([6], made[-1].finish()))
    assert {number: values(checkpoints(opened).load(number)) for number in (1, 2, 6)} == {
        number: content(number) for number in (1, 2, 6)
    }  # fmt: skip
    assert not any(again.entry.exists(b"%d.%d" % (number, chunk)) for number in (3, 4, 5) for chunk in range(9))


class Torn(DataStoreEntry):
    """An entry that keeps only some headers of a write with several."""

    def __init__(self, entry: DataStoreEntry, landing: Set[bytes]) -> None:
        self.entry, self.landing = entry, landing
        self.name, self.value_limit = entry.name, entry.value_limit

    def _write(self, pairs: Mapping[bytes, bytes]) -> None:
        headers = {key for key in pairs if key.endswith(b".0")}
        if len(headers) < 2:
            return self.entry.put_all(pairs)
        self.entry.put_all({key: pairs[key] for key in headers & self.landing})
        raise InjectedFailure

    def get(self, key: bytes) -> bytes:
        return self.entry.get(key)

    def exists(self, key: bytes) -> bool:
        return self.entry.exists(key)

    def delete_all(self, keys: Iterable[bytes]) -> None:
        self.entry.delete_all(keys)


@pytest.mark.seed("V158", "V160", "V167")
@pytest.mark.parametrize("is_same_process", [True, False], ids=["same process", "new process"])
@pytest.mark.parametrize("landed", [(), (3,), (4,), (5,), (3, 4), (3, 5), (4, 5), (3, 4, 5)], ids=str)
def test_whichever_headers_landed(tmp_path: Path, landed: tuple[int, ...], is_same_process: bool) -> None:
    """States after a missing header are gone; those before it can be read until they are withdrawn."""

    def open_it() -> DataStore:
        return DirectoryDataStore(tmp_path, LIMIT)

    made = chain([1, 2])
    checkpoints(open_it).save(made)
    stored = StoredCheckpoints(Torn(open_it().create("app/op"), {b"%d.0" % number for number in landed}))
    with pytest.raises(InjectedFailure):
        stored.save(chain([3, 4, 5], made[-1].finish()))
    again = stored if is_same_process else checkpoints(open_it)
    assert again.retire(0) == 0  # opens
    whole = [number for place, number in enumerate((3, 4, 5)) if set(range(3, number + 1)) <= set(landed)]
    for number in (3, 4, 5):
        assert again.entry.exists(b"%d.0" % number) == (number in whole)
    assert all(values(again.load(number)) == content(number) for number in (1, 2, *whole))
    again.withdraw(2)
    assert values(again.load(2)) == content(2)
    again.save(chain([6], made[-1].finish()))
    assert checkpoints(open_it).retire(6) == 2
    left = {path.name.partition(".")[0] for path in next(tmp_path.iterdir()).iterdir()}
    assert left - {"head", ""} <= {"1", "2", "6"}
    assert values(checkpoints(open_it).load(6)) == content(6)


@pytest.mark.seed("V160")
def test_a_chain_with_a_missing_link_is_cut_where_what_counts_is_there_and_else_left(tmp_path: Path) -> None:
    entry = DirectoryDataStore(tmp_path, LIMIT).create("app/op")
    StoredCheckpoints(entry).save(chain([1, 2, 3, 4]))
    entry.delete(b"3.0")
    with pytest.raises(CheckpointUnreadable):
        StoredCheckpoints(entry).withdraw(3)
    assert values(StoredCheckpoints(entry).load(4)) == content(4)
    again = StoredCheckpoints(entry)
    again.withdraw(2)
    assert not entry.exists(b"4.0")
    assert values(again.load(2)) == content(2)
    again.withdraw(1)
    assert values(StoredCheckpoints(entry).load(1)) == content(1)


@NO_BUCKET
@pytest.mark.seed("H26")
def test_an_owner_of_an_older_epoch_writes_nothing(opened: Opener) -> None:
    """The old owner was stopped while another process took the region over; then it wakes."""
    old = StoredCheckpoints(opened().create("app/op"), epoch=1)
    made = chain([1, 2])
    old.save(made)
    new = StoredCheckpoints(opened().create("app/op"), epoch=2)
    new.withdraw(2)
    for use in (lambda: old.save(chain([3], made[-1].finish())), lambda: old.withdraw(1), lambda: old.retire(2),
                lambda: StoredCheckpoints(opened().create("app/op"), epoch=1).withdraw(1)):  # fmt: skip
        with pytest.raises(Fenced):
            use()
    new.save(chain([4], made[-1].finish()))
    again = StoredCheckpoints(opened().create("app/op"), epoch=3)
    assert {number: values(again.load(number)) for number in (1, 2, 4)} == {n: content(n) for n in (1, 2, 4)}
    again.withdraw(1)
    assert not any(again.entry.exists(b"%d.0" % number) for number in (2, 3, 4))


@NO_BUCKET
def test_what_is_saved_twice_is_there_once(opened: Opener) -> None:
    stored = checkpoints(opened)
    made = chain([1, 2])
    stored.save(made)
    stored.save(made)
    stored.save([*made, *(more := chain([3], made[-1].finish()))])
    assert checkpoints(opened).retire(3) == 2
    assert values(checkpoints(opened).load(3)) == content(3)
    with pytest.raises(CheckpointUnreadable):
        stored.save([written(2, ["another"]), *more])


KILLED = """
import sys
from pathlib import Path
from drainmark.jobs import failpoints
from drainmark.jobs.state.handlers.checkpoint import CheckpointWriter
from drainmark.jobs.state.handlers.stored_checkpoints import StoredCheckpoints
from drainmark.resources.checkpoints.data_stores import DirectoryDataStore

entry = DirectoryDataStore(Path(sys.argv[1]), 4096).create("app/op")
writer = CheckpointWriter(sequence_id=3, chunk_bytes=16)
writer.write("y" * 100)
writer.finish()
failpoints.arm(sys.argv[2])
StoredCheckpoints(entry).save([writer])
"""


@pytest.mark.seed("V167")
@pytest.mark.parametrize("point", [StorePoint.CHUNKS_BEFORE, StorePoint.CHUNKS_WRITTEN, StorePoint.CHUNKS_AFTER])
def test_a_killed_process_leaves_the_last_state(tmp_path: Path, point: StorePoint) -> None:
    def open_it() -> DataStore:
        return DirectoryDataStore(tmp_path, LIMIT)

    checkpoints(open_it).save(chain([1, 2]))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), f"{point.value}:kill"], check=False)
    assert killed.returncode == -9
    again = checkpoints(open_it)
    assert values(again.load(2)) == content(2)
    again.withdraw(2)
    again.save(chain([4]))
    left = sorted(path.name for path in next(tmp_path.iterdir()).iterdir())
    assert not [name for name in left if name.startswith("3.") or name.endswith(".part")]


@pytest.mark.seed("V157", "V160")
@pytest.mark.parametrize("lost", ["gone", "damaged", "header"])
def test_damage_is_found(opened: Opener, lost: str) -> None:
    stored = checkpoints(opened)
    stored.save(chain([1]))
    if lost == "gone":
        stored.entry.delete(b"1.2")
    else:
        stored.entry.put(b"1.2" if lost == "damaged" else b"1.0", b"nonsense")
    with pytest.raises(CheckpointUnreadable):
        values(checkpoints(opened).load(1))


@pytest.mark.seed("V163")
def test_the_entry_goes_with_the_job(opened: Opener) -> None:
    stored = checkpoints(opened)
    stored.save(chain([1, 2]))
    opened().delete("app/op")
    assert not opened().exists("app/op")
    fresh = checkpoints(opened)
    with pytest.raises(CheckpointUnreadable):
        fresh.load(2)
