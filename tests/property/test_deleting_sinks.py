"""Sinks that delete keys, against plain dictionaries: whatever the groups, rewinds, compaction and garbage."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import HandFed
from simulation.regions import code_of

from drainmark.jobs import world
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, TableRole
from drainmark.jobs.runtime.commit.publish import visible_tables
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.jobs.runtime.maintenance.garbage_collection import clear
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.checkpoints.table_changes import changes_of
from drainmark.resources.settings import Settings

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("_gone", pa.bool_()), ("_sequence_id", pa.int64())])
KEYED, SNAPSHOT = "state/by_hand/keyed", "state/by_hand/snapshot"
COLUMNS = ("k", "v", "_sequence_id")
Keys = dict[str, tuple[int, int]]
"""By key, its value and the id that wrote it."""


def schema(*columns: str) -> str:
    kinds = {"k": "string", "v": "long", "_gone": "boolean", "_sequence_id": "long"}
    fields = [{"name": name, "type": kinds[name], "nullable": True, "metadata": {}} for name in columns]
    return json.dumps({"type": "struct", "fields": fields})


def _history(name: str, role: TableRole, **more: Any) -> RegionTable:
    return RegionTable(name=name, role=role, operator=name.rpartition("/")[2], schema_json=schema(*ROWS.names), **more)


def _visible(name: str, role: TableRole, history: str, **more: Any) -> RegionTable:
    return RegionTable(
        name=name, role=role, operator=name.rpartition("/")[2], schema_json=schema(*COLUMNS), history=history,
        columns=COLUMNS, deletes=True, **more,
    )  # fmt: skip


SHOP = {"external": "database", "options": {"database": "shop", "table": "mirror"}}
TABLES = (
    _history(KEYED, TableRole.CHANGES, keys=("k",)),
    _visible("lake/mirror", TableRole.UPSERT, KEYED, keys=("k",)),
    _visible("lake/parted", TableRole.UPSERT, KEYED, keys=("k",), options={"partition_by": ["v"]}),
    _visible("database/shop/mirror", TableRole.UPSERT, KEYED, keys=("k",), **SHOP),
    _history(SNAPSHOT, TableRole.APPEND),
    _visible("lake/snapshot", TableRole.OVERWRITE, SNAPSHOT),
)
MIRRORS = tuple(table.name for table in TABLES if table.role is TableRole.UPSERT)


@dataclass
class Mirrored(HandFed):
    """A region whose files have lines such as `a=3` and `-a`: the changes of keys, and the rows of a snapshot.

    Attributes:
        declared: its tables.
        images: its keyed history has an image with each group, without the keys that are gone.
    """

    declared: Sequence[RegionTable] = TABLES
    images: bool = False

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return tuple(self.declared)

    def group(self, count: int) -> StagedGroup:
        registry, pending = self.workplace.registry, self.next(count)
        first = registry.progress.take_ids(self.region, self.owner.epoch, len(pending))
        members = tuple(Assigned(sequence_id=first + i, trigger=trigger) for i, trigger in enumerate(pending))
        group = Group(members=members, epoch=self.owner.epoch, attempt=world.token())
        keyed, snapshot = [], []
        for member in members:
            lines = lines_of(member.trigger.uri)
            changed = {key: row(key, value, member.sequence_id) for key, value in lines}
            keyed += list(changed.values())
            shown = [row(key, value, member.sequence_id) for key, value in lines if value is not None]
            snapshot += shown or [row(None, None, member.sequence_id)]
        staged = {KEYED: self._staged(group, KEYED, keyed), SNAPSHOT: self._staged(group, SNAPSHOT, snapshot)}
        if self.images:
            staged[KEYED] = replace(staged[KEYED], image=self._image(group, keyed))
        return StagedGroup(
            group=group, rows_in={m.sequence_id: 1 for m in members}, tables=staged, lookups={}, process_seconds=0.0,
            drain_seconds=0.0, upserts=tuple(table.name for table in self.tables if table.is_derived),
        )  # fmt: skip

    def _staged(self, group: Group, name: str, rows: Sequence[Any]) -> StagedTable:
        found = pa.Table.from_pylist(rows, schema=ROWS)
        staging = self.workplace.store(self.region).staging(name, group.epoch, group.attempt)
        return StagedTable(files=staging.write(found, "rows") if rows else (), rows=found)

    def _image(self, group: Group, changed: Sequence[Any]) -> Image:
        kept = {key: row(key, value, number) for key, (value, number) in expected(self.files(), None)[0].items()}
        kept |= {each["k"]: each for each in changed}
        rows = pa.Table.from_pylist([each for each in kept.values() if not each["_gone"]], schema=ROWS)
        staging = self.workplace.store(self.region).staging(KEYED, group.epoch, group.attempt)
        return Image(table=KEYED, at=group.last_id, files=staging.write(rows, "image"))

    def files(self) -> dict[int, str]:
        """Return the files by the id in force that has them."""
        states = self.history().states.items()
        return {number: row.trigger_uri or "" for number, row in states if row.kind is RowKind.STATE}


def lines_of(path: str) -> list[tuple[str, int | None]]:
    lines = (line.partition("=") for line in Path(path).read_text().split())
    return [(key.removeprefix("-"), int(value) if value else None) for key, _, value in lines]


def row(key: str | None, value: int | None, number: int) -> dict[str, Any]:
    return {"k": key, "v": value, "_gone": value is None, "_sequence_id": number}


def expected(files: Mapping[int, str], at: int | None) -> tuple[Keys, Counter[str]]:
    """Return the mirror and the snapshot at an id, by plain Python."""
    keys: Keys = {}
    snapshot: Counter[str] = Counter()
    for number, path in sorted(files.items()):
        if at is not None and number > at:
            break
        lines = lines_of(path)
        for key, value in lines:
            keys.pop(key, None)
            if value is not None:
                keys[key] = (value, number)
        snapshot = Counter(str((key, value, number)) for key, value in lines if value is not None)
    return keys, snapshot


def mirror(rows: pa.Table) -> Keys:
    found = rows.to_pylist()
    assert all(set(each) == set(COLUMNS) for each in found)
    keys = {each["k"]: (each["v"], each["_sequence_id"]) for each in found}
    assert len(keys) == len(found), "a key is there twice"
    return keys


def counted(rows: pa.Table) -> Counter[str]:
    return Counter(str((each["k"], each["v"], each["_sequence_id"])) for each in rows.to_pylist())


def check(fed: Mirrored, draw: random.Random) -> None:
    """Compare all tables, as readers see them, at every state within reach, and between two of these."""
    reader, files = RegionReader(fed.workplace.settings, fed.region), fed.files()
    declared = {table.name for table in fed.tables}
    mirrors = [name for name in MIRRORS if name in declared]
    for name in mirrors:
        if name not in reader.history.lags:
            assert mirror(reader.visible(name)) == expected(files, None)[0], name
        assert mirror(reader.now(name)) == expected(files, None)[0], name
    assert counted(reader.visible("lake/snapshot")) == expected(files, None)[1]
    lowest = max([0, *reader.history.dropped.values()])
    states = [number for number in (0, *files) if number >= lowest or number == 0]
    for at in {*draw.choices(states, k=3), states[-1]}:
        assert mirror(reader.as_of(mirrors[0], at)) == expected(files, at)[0], at
    edge = reader.history.trimmed.get(SNAPSHOT, 0)
    for at in {number for number in draw.choices(states, k=3) if number >= edge}:
        assert counted(reader.as_of("lake/snapshot", at)) == expected(files, at)[1], at
    for after, through in (sorted(draw.choices(states, k=2)) for _ in range(2)):
        compare_changes(fed, reader, mirrors[0], after, through)
        if after >= edge and through >= edge:
            compare_changes(fed, reader, "lake/snapshot", after, through)


def compare_changes(fed: Mirrored, reader: RegionReader, name: str, after: int, through: int) -> None:
    found = changes_of(reader, name, after=after, through=through).to_pylist()
    made = counted(reader.as_of(name, after))
    for change in found:
        sign = 1 if change["_change_type"] in ("insert", "update_postimage") else -1
        made[str((change["k"], change["v"], change["_sequence_id"]))] += sign
    assert min(made.values(), default=0) >= 0, "what left was not there"
    assert +made == counted(reader.as_of(name, through)), (name, after, through)
    if name != "lake/snapshot":
        before, now = (expected(fed.files(), at)[0] for at in (after, through))
        kinds = {change["k"]: change["_change_type"] for change in found if change["_change_type"] in KINDS}
        assert kinds == {key: KINDS[key not in before] for key in before.keys() ^ now.keys()}


KINDS: Any = {True: "insert", False: "delete", "insert": 1, "delete": 1}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    databases = {"shop": f"sqlite:///{tmp_path / 'shop.db'}"}
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases))
    yield found
    found.registry.close()


def lines(draw: random.Random) -> list[str]:
    """Return changes of few keys; a file without any, and keys that were never there, come up."""
    keys = draw.sample("abcde", draw.choice([0, 1, 2, 4]))
    return [f"-{key}" if draw.random() < 0.4 else f"{key}={draw.randrange(4)}" for key in keys]


@pytest.mark.seed("DL1")
@pytest.mark.parametrize(
    ("seed", "images"),
    [
        (1, False),
        (2, True),
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(2, False, marks=pytest.mark.slow),
        *(pytest.param(n, images, marks=pytest.mark.slow) for n in range(3, 40) for images in (False, True)),
    ],
)
def test_deleted_keys_leave_and_come_back(
    place: Workplace, tmp_path: Path, seed: int, images: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    if draw.random() < 0.5:  # tables lag
        monkeypatch.setattr(visible_tables, "PROMPT_BYTES", 0)
        monkeypatch.setattr(visible_tables, "_QUICK_SECONDS", -1.0)
        monkeypatch.setattr(visible_tables, "_WORK_PER_SECOND", 1e9)
    fed = Mirrored(place, tmp_path / "inbox", images=images)
    for number in range(7):
        for step in range(draw.choice([1, 1, 3])):
            fed.write(name := f"{number:03}-{step}", lines(draw))
            fed.add(name)
        size = draw.choice([1, 2, 5])
        fed.crash_after(1) if draw.random() < 0.2 else fed.drain(1 if images else size)
        if draw.random() < 0.3:
            with fed.owning() as owner:
                history = fed.history()
                reach = max(history.committed_id - 4, *history.dropped.values(), 0)
                to = [each for each in (0, *history.states) if each >= reach]
                owner.rewind(draw.choice(to), 4)
        if draw.random() < 0.4:
            with fed.owning() as owner:
                maintain_region(owner, horizon=4)
                clear(
                    owner.outside.store, owner.history.tables, epoch=owner.epoch, horizon=4, now=owner.outside.clock()
                )
        fed.drain(size if not images else 1)
        check(fed, draw)


@pytest.mark.seed("DL1")
@pytest.mark.parametrize("is_rewound", [False, True])
def test_a_table_that_is_declared_again_loses_keys_that_its_image_does_not_know(
    place: Workplace, tmp_path: Path, is_rewound: bool
) -> None:
    """The history's rows of the deletes are dropped meanwhile, and its image has none for a key that is gone."""
    fed = Mirrored(place, tmp_path / "inbox", images=True)

    def declare(*without: str) -> None:
        fed.declared = [table for table in TABLES if table.name not in without]
        fed.code = code_of(fed.declared, len(without))

    def take(first: int, *files: Sequence[str]) -> None:
        for number, changed in enumerate(files, first):
            fed.write(f"{number:03}", list(changed))
            fed.add(f"{number:03}")
        fed.drain()

    again = ("lake/mirror", "database/shop/mirror")
    declare()
    take(1, ["a=1", "b=2", "c=3"])
    declare(*again)
    take(2, ["-a"], ["b=4"], ["d=1"], ["d=2"])
    with fed.owning() as owner:
        maintain_region(owner, horizon=1)
    assert fed.history().dropped[KEYED] > 2
    declare()
    if is_rewound:
        with fed.owning() as owner:
            assert set(again) <= set(fed.history().lags)
            owner.rewind(fed.history().committed_id - 1, 1)
    take(6, ["e=1"])
    keys = expected(fed.files(), None)[0]
    assert "a" not in keys
    reader = RegionReader(place.settings, fed.region)
    for name in MIRRORS:
        assert mirror(reader.visible(name)) == keys, name
