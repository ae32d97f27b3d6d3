"""Part `rewind`: `reset --to N` across a thousand ids, for an append table of 2 GB and for an upsert table.

The regions are fed through the project's own functions, without Spark: every id is a group of its own with a staged
file of real, incompressible bytes. Groups are committed and published, and files compacted between groups, as runs do
it. N lies inside a compacted file, so one file has ids on both sides of N. The part measures the verb after its plan,
in this process, warm: claim, checks of the inputs, rewind of every table, hand-over (`rewind_1000_ids_s`,
`rewind_1000_ids_upsert_s`); and the plan that it prints first (`rewind_plan_1000_ids_s`). Each round uses a copy of the
home: hard links to committed files, which are never rewritten, and a copy of the registry. After each rewind, the rows
of each id and the values of keys are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bench_input import WrongResult
from bench_results import Figures, spread
from rich.console import Console

from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.maintenance.compaction import EVERY_GROUPS, maintain_tables
from drainmark.jobs.scan.folder import identity_key, identity_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

IDS_ABOVE = 1000
IDS_BELOW = 110
"""Number of ids that stay; not a multiple of the ids in one compaction."""

_ROW_BYTES = 1024
_FILE_BYTES = 1900 * _ROW_BYTES
"""A little less than 1/64 of the size of a compacted file, so that 64 files fit into one."""

_CHANGES_AN_ID = 2000
_KEYS = 100_000


def _schema(**columns: str) -> str:
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


@dataclass(slots=True)
class Fed:
    """A region whose groups of one id each are staged here; `rows` and `tables` define their rows and tables.

    Attributes:
        rows_an_id: number of rows that each id stages.
    """

    home: Path
    ids: int
    rows_an_id: int
    region: str = "bench/fed"
    workplace: Workplace = field(init=False)

    def __post_init__(self) -> None:
        self.workplace = Workplace(Settings(home=self.home, project_root=self.home.parent))

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        schema = _schema(payload="binary", _sequence_id="long")
        return (RegionTable(name="lake/rows", role=TableRole.APPEND, operator="rows", schema_json=schema),)

    def rows(self, number: int) -> pa.Table:
        """Return the rows that an id stages: bytes that do not compress."""
        noise = np.random.default_rng(number).bytes(self.rows_an_id * _ROW_BYTES)
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_ROW_BYTES), self.rows_an_id, [None, pa.py_buffer(noise)]
        )
        return pa.table({"payload": fixed.cast(pa.binary()), "_sequence_id": _same(number, self.rows_an_id)})

    def build(self) -> None:
        """Feed all ids, with the same maintenance as in runs."""
        self._add_inputs()
        owner = region_owner(self.workplace, self.region)
        owner.claim(self.tables)
        store = self.workplace.store(self.region)
        for done in range(1, self.ids + 1):
            owner.groups.publish(owner.groups.commit(self._staged(owner)))
            if done % EVERY_GROUPS == 0:
                maintain_tables(store, self.tables, epoch=owner.epoch, horizon_id=0)
        owner.release(Outcome.CLEAN)
        self.workplace.registry.close()

    def _add_inputs(self) -> None:
        inbox = self.home.parent / f"{self.home.name}-inbox"
        inbox.mkdir(parents=True)
        new = []
        for number in range(self.ids):
            path = inbox / f"{number:06d}"
            path.write_text(f"{number}\n")
            identity = identity_of(path.stat())
            new.append(NewTrigger(uri=str(path), identity=identity, identity_key=identity_key(identity), size_bytes=8))
        self.workplace.registry.triggers.add(self.region, new)

    def _staged(self, owner: RegionOwner) -> StagedGroup:
        registry = self.workplace.registry
        (trigger,) = registry.triggers.pending(self.region, 1)
        number = registry.progress.take_ids(self.region, owner.epoch, 1)
        group = Group(members=(Assigned(sequence_id=number, trigger=trigger),), epoch=owner.epoch,
                      attempt=uuid.uuid4().hex)  # fmt: skip
        staged = {}
        for table in self.tables:
            if table.role is not TableRole.UPSERT:
                area = self.workplace.store(self.region).staging(table.name, group.epoch, group.attempt)
                staged[table.name] = StagedTable(files=area.write(self.rows(number), "rows"))
        upserts = tuple(table.name for table in self.tables if table.role is TableRole.UPSERT)
        return StagedGroup(group=group, rows_in={number: self.rows_an_id}, tables=staged, lookups={},
                           process_seconds=0.0, drain_seconds=0.0, upserts=upserts)  # fmt: skip

    def rewind(self, to: int) -> Mapping[str, float]:
        """Rewind the region as `reset --to` does; return the seconds of the plan and of the work."""
        began = time.monotonic()
        plan = plan_reset(self.workplace, self.region, RewindTarget(to=to))
        planned = time.monotonic()
        interventions.reset(self.workplace, plan)
        return {"plan": planned - began, "work": time.monotonic() - planned}

    def bytes_visible(self) -> int:
        """Return the total size in bytes of the first table's live files."""
        table = self.workplace.store(self.region).table(self.tables[0].name)
        return sum(file.size for file in table.files.live())

    def check(self, to: int) -> None:
        """Compare the table and the pending triggers with those at the id `to`.

        Raises:
            WrongResult: rows are missing or too many, a row is above `to`, or the wrong number of triggers is pending.
        """
        found = self.workplace.store(self.region).table("lake/rows").read(["_sequence_id"])
        _demand("ids", _counts(found), dict.fromkeys(range(1, to + 1), self.rows_an_id))
        _demand("pending", self.workplace.registry.pending_count(self.region), self.ids - to)


class FedUpsert(Fed):
    """A region with a history of changes, and a visible table of one row for each key."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        schema = _schema(key="long", value="long", _sequence_id="long")
        history = RegionTable(
            name="state/bench/last", role=TableRole.CHANGES, operator="last", schema_json=schema, keys=("key",)
        )
        visible = RegionTable(
            name="lake/last", role=TableRole.UPSERT, operator="sink", schema_json=schema, keys=("key",),
            history=history.name, columns=("key", "value", "_sequence_id"),
        )  # fmt: skip
        return (history, visible)

    def rows(self, number: int) -> pa.Table:
        """Return the changes of an id: random keys, each once."""
        keys = np.random.default_rng(number).choice(_KEYS, self.rows_an_id, replace=False)
        return pa.table({"key": keys, "value": keys * number, "_sequence_id": _same(number, self.rows_an_id)})

    def check(self, to: int) -> None:
        """Check as `Fed.check`, that every key has its last value up to `to` (inclusive)."""
        last = np.zeros(_KEYS, dtype=np.int64)
        for number in range(1, to + 1):
            last[self.rows(number)["key"].to_numpy()] = number
        store = self.workplace.store(self.region)
        found = store.table("lake/last").read().sort_by("key")
        keys = np.flatnonzero(last)
        expected = {"key": keys, "value": keys * last[keys], "_sequence_id": last[keys]}
        for name, values in expected.items():
            _demand(name, found[name].to_pylist(), values.tolist())
        _demand("ids of the history", _counts(store.table("state/bench/last").read(["_sequence_id"])),
                dict.fromkeys(range(1, to + 1), self.rows_an_id))  # fmt: skip


def measure(console: Console, *, quick: bool, root: Path, rounds: int) -> Figures:
    """Rewind both kinds of tables.

    Raises:
        WrongResult: a table is not as it was at the id.
    """
    above, below, rows = (100, 90, 100) if quick else (IDS_ABOVE, IDS_BELOW, _FILE_BYTES // _ROW_BYTES)
    regions = {
        "": Fed(root / "append", above + below, rows),
        "_upsert": FedUpsert(root / "upsert", above + below, _CHANGES_AN_ID),
    }
    figures: Figures = {}
    for name, region in regions.items():
        with console.status(f"{region.ids} groups for {region.home.name} …"):
            began = time.monotonic()
            region.build()
        took, size = time.monotonic() - began, region.bytes_visible()
        console.print(f"{region.home.name}: {region.ids} ids, {size / 2**20:,.0f} MB, fed in {took:.0f} s")
        taken = []
        for number in range(rounds):
            home = _linked(region.home, root / f"{region.home.name}-{number}")
            copy = type(region)(home, region.ids, region.rows_an_id)
            taken.append(copy.rewind(below))
            copy.check(below)
            shutil.rmtree(copy.home)
        figures.update(spread(f"rewind_1000_ids{name}_s", [each["work"] for each in taken]))
        figures.update(spread(f"rewind_plan_1000_ids{name}_s", [each["plan"] for each in taken]))
        figures[f"rewind_mb{name}"] = round(size / 2**20, 1)
        work, plan = figures[f"rewind_1000_ids{name}_s"], figures[f"rewind_plan_1000_ids{name}_s"]
        console.print(f"{region.home.name}: {above} ids rewound in {work:.2f} s, after a plan of {plan:.2f} s")
        shutil.rmtree(region.home)
    return figures


def _linked(home: Path, copy: Path) -> Path:
    """Return a copy of a home: hard links of Parquet and JSON files, which are never rewritten; copies of others."""

    def link(source: str, target: str) -> None:
        if source.endswith((".parquet", ".json")):
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    shutil.copytree(home, copy, copy_function=link)
    return copy


def _same(number: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), rows)


def _counts(rows: pa.Table) -> dict[int, int]:
    counted = pc.value_counts(rows["_sequence_id"]).to_pylist()
    return {entry["values"]: entry["counts"] for entry in sorted(counted, key=lambda entry: entry["values"])}


def _demand(what: str, found: object, expected: object) -> None:
    if found != expected:
        msg = f"after the rewind, {what}: {str(found)[:300]}, expected {str(expected)[:300]}"
        raise WrongResult(msg)
