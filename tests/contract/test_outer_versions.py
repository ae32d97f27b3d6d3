"""A sink outside Delta that is ahead of the checkpoint table, or behind it: halted at the claim, repaired by the plan.

The home, or a database, a folder or a bucket, is put back to an earlier state, as a backup does, or a standby that
takes over. After the printed remedy the sink has the rows of the Delta table of the same region.
"""

from __future__ import annotations

import datetime as dt
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from by_hand import SCHEMA_JSON, HandFed
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.schema import PrimitiveType
from followed import follow
from places import store_at

from drainmark.jobs import failpoints
from drainmark.jobs.errors import Halted, SplitBrain
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.addresses import address_of
from drainmark.jobs.protocol.records.ids import app_id, txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.commit.publish import outer_sinks
from drainmark.orchestration import doctor
from drainmark.orchestration.doctor.registry_repair import repair_order
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions, table_repair
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset, resolve_target
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta.adopted.constraints import REGION_PROPERTY
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.databases import engine_of, url_of

ALL = ("sqlite", "folder", "postgresql", "keyed", "folders", "bucket")
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ALL]
KINDS = ["sqlite", *SLOW[1:]]
FEW = [SLOW[0], SLOW[1], SLOW[3], SLOW[5]]
FILE = {"format": "csv", "name": "part-{sequence_id}"}


@dataclass
class Beside(HandFed):
    """A hand-fed region with an append table, and beside it one sink outside Delta with the same rows."""

    kind: str = "sqlite"
    path: str = ""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return (*super().tables, *self.sink()) if self.kind else super().tables

    def sink(self) -> tuple[RegionTable, RegionTable]:
        keys = ("value",) if self.kind == "keyed" else ()
        role = TableRole.UPSERT if keys else TableRole.COPY
        external, options = "database", {"database": "shop", "table": "rows"}
        if self.is_of_files:
            external = "file"
            options = {**FILE, "path": self.path, "layout": "folder" if self.kind == "folders" else "file"}
        history = RegionTable(
            name="state/by_hand/beside", role=TableRole.CHANGES if keys else TableRole.APPEND, operator="beside",
            schema_json=SCHEMA_JSON, keys=keys,
        )  # fmt: skip
        shown = RegionTable(
            name=f"{external}/beside", role=role, operator="beside", schema_json=SCHEMA_JSON, history=history.name,
            columns=("value", "_sequence_id"), keys=keys, external=external, options=options,
        )  # fmt: skip
        return history, shown

    @property
    def is_of_files(self) -> bool:
        return self.kind in ("folder", "folders", "bucket")

    def beside(self) -> list[tuple[int, str]]:
        """Return the rows of the sink as sorted (id, value)."""
        found = self.workplace.store(self.region).external(self.sink()[1]).read().to_pylist()
        return sorted((row["_sequence_id"], row["value"]) for row in found)

    def take(self, *names: str) -> None:
        """Process a file of each name, with two rows, in groups of one."""
        for name in names:
            self.write(name, [f"{name}1", f"{name}2"])
            self.add(name)
        self.drain()

    def reopened(self) -> Beside:
        """Return the same region in a new process's place."""
        self.workplace.registry.close()
        return Beside(Workplace(self.workplace.settings), self.inbox, kind=self.kind, path=self.path)

    # --- backups ---------------------------------------------------------------------------------------------------

    def save(self) -> Any:
        """Return a backup of the sink alone."""
        if self.kind == "bucket":
            store, bucket = self.bucket()
            return {f.key: store.get(bucket, f.key) for page in store.pages(bucket) for f in page}
        if self.is_of_files:
            return shutil.copytree(self.path, self.inbox.parent / uuid.uuid4().hex)
        with self._engine().begin() as connection:
            return [(table, connection.execute(table.select()).mappings().all()) for table in self._sql(connection)]

    def restore(self, saved: Any) -> None:
        if self.kind == "bucket":
            store, bucket = self.bucket()
            store.delete(bucket, [f.key for page in store.pages(bucket) for f in page])
            for key, data in saved.items():
                store.put(bucket, key, data)
        elif self.is_of_files:
            shutil.rmtree(self.path)
            shutil.copytree(saved, self.path)
        else:
            with self._engine().begin() as connection:
                for table, rows in saved:
                    connection.execute(table.delete())
                    connection.execute(table.insert(), [dict(row) for row in rows])

    def lose(self) -> None:
        """Delete the sink with all that it knows."""
        if self.kind == "bucket":
            self.restore({})
        elif self.is_of_files:
            shutil.rmtree(self.path)
        else:
            with self._engine().begin() as connection:
                for table in self._sql(connection):
                    table.drop(connection)

    @staticmethod
    def _sql(connection: sa.Connection) -> list[sa.Table]:
        names = ("rows", "drainmark_applied")
        return [sa.Table(name, sa.MetaData(), autoload_with=connection) for name in names]

    def _engine(self) -> sa.Engine:
        return engine_of(url_of(self.workplace.settings, "shop"))

    def bucket(self) -> tuple[Any, str]:
        endpoint = self.workplace.settings.s3_endpoint_url
        assert endpoint is not None
        return store_at(endpoint), address_of(self.path)[0]


@pytest.fixture
def make(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Beside]]:
    """Yield a function that makes a region with a sink, in a home that the command line finds."""
    monkeypatch.chdir(tmp_path)
    made = []

    def build(kind: str) -> Beside:
        url, path, more = f"sqlite:///{tmp_path}/shop.db", str(tmp_path / "out"), {}
        if kind == "postgresql":
            url = request.getfixturevalue("postgres_url")
        if kind == "bucket":
            request.getfixturevalue("s3_credentials")
            more["s3_endpoint_url"] = request.getfixturevalue("s3_server")
            path = f"s3://beside-{uuid.uuid4().hex[:12]}/out"
            monkeypatch.setenv("DRAINMARK_S3_ENDPOINT_URL", more["s3_endpoint_url"])
        monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", url)
        settings = Settings(home=tmp_path / "home", project_root=tmp_path, databases={"shop": url}, **more)
        fed = Beside(Workplace(settings), tmp_path / "inbox", kind=kind, path=path)
        if kind == "bucket":
            store, bucket = fed.bucket()
            store.connection.client.create_bucket(Bucket=bucket.removeprefix("s3://"))
        made.append(fed)
        return fed

    yield build
    failpoints.arm("")
    for fed in made:
        fed.workplace.registry.close()


def saved_home(fed: Beside) -> Path:
    fed.workplace.registry.close()
    return shutil.copytree(fed.workplace.home, fed.workplace.home.with_name("saved"))


def restored_home(fed: Beside, saved: Path) -> Beside:
    fed.workplace.registry.close()
    shutil.rmtree(fed.workplace.home)
    shutil.copytree(saved, fed.workplace.home)
    return fed.reopened()


def told(fed: Beside) -> list[str]:
    """Return what doctor says about sinks outside Delta."""
    checks = doctor.examine(fed.workplace, with_engine=False)["checks"]
    return [found["message"] for found in checks if (found["check"], found["verdict"]) == ("outside", "fail")]


def assert_halts(fed: Beside, why: str, *, name: str = "next") -> str:
    """Assert that a run changes nothing and halts, and that doctor says why, before and after; return its text."""
    before, committed = fed.beside(), fed.history().committed_id
    assert len(told(fed)) == 1
    for _ in range(2):
        with pytest.raises(Halted, match=why) as halted:
            fed.take(name)
    assert (fed.beside(), fed.history().committed_id) == (before, committed)
    assert fed.history().halt.detail["error"]["id"] == SplitBrain.id  # type: ignore[union-attr]
    (said,) = told(fed)
    assert why in said
    return str(halted.value)


def assert_repaired(fed: Beside) -> None:
    """Follow the printed remedy to its end, and assert that the sink has the rows of the Delta table."""
    planned = table_repair.plan_region(fed.workplace, fed.region)
    assert planned.remedy is None
    assert table_repair.mend(fed.workplace, fed.region).to_json() == planned.to_json(), "the plan is the deed"
    assert (table_repair.plan(fed.workplace), told(fed)) == ([], [])
    interventions.resume(fed.workplace, fed.region, "put right")
    assert_goes_on(fed)


def assert_goes_on(fed: Beside) -> None:
    fed.drain()
    fed.take("later")
    assert fed.beside() == fed.values()
    assert told(fed) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_ahead_of_a_restored_home_halts_until_it_is_repaired(make: Callable[[str], Beside], kind: str) -> None:
    fed = make(kind)
    fed.take("a", "b", "c")
    saved = saved_home(fed)
    fed = fed.reopened()
    fed.take("d", "e", "f")
    fed = restored_home(fed, saved)
    said = assert_halts(fed, "at id 6 of epoch 2, which the checkpoint table does not know, at 3")
    follow(said, "doctor", fed.workplace.home)
    follow(said, "resume", fed.workplace.home)
    fed.add("next")  # as the next scan does, if the registry was rebuilt as well
    assert_goes_on(fed)
    names = ("a", "b", "c", "next", "later")
    assert [value for _, value in fed.beside()] == [f"{name}{row}" for name in names for row in (1, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_behind_its_region_halts_until_its_ids_are_written_again(
    make: Callable[[str], Beside], kind: str
) -> None:
    fed = make(kind)
    fed.take("a", "b")
    saved = fed.save()
    fed.take("c", "d")
    fed.restore(saved)
    follow(assert_halts(fed, "at id 2, but was at 4"), "resume", fed.workplace.home)
    assert_goes_on(fed)


def test_an_owner_that_goes_on_meanwhile_is_ended_and_the_repair_repeated(
    make: Callable[[str], Beside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup of the home is set up beside the home, which still has its owner."""
    fed = make("sqlite")
    fed.take("a")
    settings = fed.workplace.settings.model_copy(update={"home": saved_home(fed)})
    fed = fed.reopened()
    fed.take("b")
    restored = Beside(Workplace(settings), fed.inbox.with_name("other"), kind=fed.kind)
    monkeypatch.setattr(failpoints, "_act", lambda point, action: fed.take("c"))
    failpoints.arm("repair.before_commit:raise")
    with pytest.raises(SplitBrain, match="above that of this repair") as refused:
        table_repair.mend(restored.workplace, restored.region)
    failpoints.arm("")
    fed.workplace.registry.close()
    follow(str(refused.value), "doctor", settings.home)
    assert_goes_on(restored)
    restored.workplace.registry.close()


@pytest.mark.parametrize("kind", SLOW)
def test_a_sink_that_is_gone_is_not_begun_anew_and_is_written_again(make: Callable[[str], Beside], kind: str) -> None:
    fed = make(kind)
    fed.take("a", "b")
    fed.lose()
    assert len(told(fed)) == 1
    with pytest.raises(Halted, match="is gone, but was at 2"):
        fed.take("c")
    assert_repaired(fed)


@pytest.mark.parametrize("kind", SLOW)
def test_ids_that_the_lost_time_withdrew_come_back(make: Callable[[str], Beside], kind: str) -> None:
    """After the backup, the region went back below it: the sink lacks ids that the home knows, and has others."""
    fed = make(kind)
    fed.take("a", "b", "c")
    saved = saved_home(fed)
    fed = fed.reopened()
    reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    fed.drain()
    fed = restored_home(fed, saved)
    assert_halts(fed, "which the checkpoint table does not know")
    assert_repaired(fed)
    if kind == "bucket":  # no owner deletes them as withdrawn
        fed.take("last")
        assert fed.beside() == fed.values()


@pytest.mark.parametrize("kind", SLOW)
@pytest.mark.parametrize("point", ["repair.before_commit", "repair.after_commit"])
def test_a_repair_that_is_killed_is_repeated(
    make: Callable[[str], Beside], monkeypatch: pytest.MonkeyPatch, kind: str, point: str
) -> None:
    fed = make(kind)
    fed.take("a", "b", "c")
    saved = saved_home(fed)
    fed = fed.reopened()
    fed.take("d")
    fed = restored_home(fed, saved)

    def crash(name: str, action: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_act", crash)
        failpoints.arm(f"{point}:kill")
        with pytest.raises(KeyboardInterrupt):
            table_repair.mend(fed.workplace, fed.region)
    failpoints.arm("")
    if table_repair.plan(fed.workplace):
        table_repair.mend(fed.workplace, fed.region)
    assert told(fed) == []
    fed.take("next")
    assert_goes_on(fed)


@pytest.mark.parametrize("kind", FEW)
def test_a_repair_brings_what_is_committed_and_not_published(make: Callable[[str], Beside], kind: str) -> None:
    fed = make(kind)
    fed.take("a")
    saved = fed.save()
    fed.take("b")
    crash_before_publish(fed, "c")
    fed.restore(saved)
    with pytest.raises(Halted, match="at id 1, but was at 2"):
        fed.drain()
    assert_repaired(fed)


@pytest.mark.parametrize("kind", ["sqlite", *FEW[1:]])
def test_a_sink_that_only_lacks_what_is_not_published_is_no_damage(make: Callable[[str], Beside], kind: str) -> None:
    fed = make(kind)
    fed.take("a")
    crash_before_publish(fed, "b")
    assert told(fed) == []
    assert table_repair.plan(fed.workplace) == []
    assert_goes_on(fed)


def crash_before_publish(fed: Beside, name: str) -> None:
    fed.write(name, [f"{name}1", f"{name}2"])
    fed.add(name)
    with suppress(KeyboardInterrupt), fed.owning():
        fed.owner.groups.commit(fed.group(1))
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("where", ["ahead", "behind"])
def test_a_rewind_reaches_its_target_in_a_sink_that_differs(
    make: Callable[[str], Beside], kind: str, where: str
) -> None:
    """`reset` is followed instead of the repair; both end in the same rows."""
    fed = make(kind)
    fed.take("a", "b")
    sink, home = fed.save(), saved_home(fed)
    fed = fed.reopened()
    fed.take("c", "d")
    if where == "ahead":
        fed = restored_home(fed, home)
    else:
        fed.restore(sink)
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=1))
    assert [repair.table for repair in plan.repairs] == [fed.sink()[1].name]
    reset(fed.workplace, plan)
    assert fed.beside() == fed.values() == [(1, "a1"), (1, "a2")]
    assert_goes_on(fed)


@pytest.mark.parametrize("kind", ["sqlite", "folder"])
def test_a_rewind_needs_no_files_of_the_group_that_it_withdraws(make: Callable[[str], Beside], kind: str) -> None:
    """They lay in the folder of the history, which is gone."""
    fed = make(kind)
    fed.take("a")
    crash_before_publish(fed, "b")
    shutil.rmtree(fed.workplace.home / fed.sink()[0].name)
    reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=0)))
    assert_goes_on(fed)


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("point", ["rewind.after_commit", "rewind_table.before_commit", "rewind_table.after_commit"])
def test_a_rewind_that_was_killed_ends_right_in_a_sink_of_another_time(
    make: Callable[[str], Beside], monkeypatch: pytest.MonkeyPatch, kind: str, point: str
) -> None:
    """The home is restored to the middle of a rewind, and the sink has been through more since."""
    fed = make(kind)
    fed.take("a", "b", "c")

    def crash(name: str, action: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_act", crash)
        failpoints.arm(f"{point}:kill")
        with pytest.raises(KeyboardInterrupt):
            reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    failpoints.arm("")
    assert fed.history().rewinding
    home = saved_home(fed)
    fed = fed.reopened()
    fed.take("d")
    fed = restored_home(fed, home)
    fed.drain()
    assert fed.beside() == fed.values()
    assert_goes_on(fed)


@pytest.mark.parametrize("kind", FEW)
def test_a_sink_waits_for_the_repair_of_its_history(make: Callable[[str], Beside], kind: str) -> None:
    fed = make(kind)
    fed.take("a", "b")
    saved = fed.save()
    fed.take("c")
    fed.restore(saved)
    DeltaTable(fed.workplace.home / fed.sink()[0].name).delete("_sequence_id = 2")
    (planned,) = table_repair.plan(fed.workplace)
    assert [step.table for step in planned.steps] == [fed.sink()[0].name]
    done = table_repair.mend(fed.workplace, fed.region)
    assert [step.table for step in done.steps] == [table.name for table in fed.sink()]
    assert table_repair.plan(fed.workplace) == []
    assert_goes_on(fed)


@pytest.mark.parametrize("kind", SLOW[:2])
def test_ids_beyond_the_horizon_are_named_and_the_reset_that_is_told_brings_them(
    make: Callable[[str], Beside], kind: str
) -> None:
    fed = make(kind)
    fed.take("a")
    saved = fed.save()
    fed.take("b", "c")
    trim(fed, 2)
    fed.restore(saved)
    with pytest.raises(Halted):
        fed.take("d")
    (planned,) = table_repair.plan(fed.workplace)
    (step,) = planned.tables
    assert (step.lost, planned.target) == ((2,), 0)
    assert table_repair.mend(fed.workplace, fed.region).possible == ()
    with pytest.raises(Halted):
        fed.drain()
    assert planned.remedy is not None
    assert f"drainmark reset {fed.region} --to 0 --yes" in planned.remedy
    reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=0)))
    assert fed.beside() == fed.values() == []
    assert_goes_on(fed)


def trim(fed: Beside, through: int) -> None:
    """Drop the rows of ids from the sink's history, as maintenance does beyond the horizon."""
    history = fed.sink()[0].name
    fed.owner = region_owner(fed.workplace, fed.region)
    fed.owner.claim()
    fed.owner.ledger.note_published(trimmed={history: through})
    kept = fed.workplace.store(fed.region).table(history)
    assert kept.upkeep.drop(kept.txn_version() or 0, through)
    fed.owner.release(Outcome.CLEAN)


@pytest.mark.slow
def test_the_desk_of_dagster_repairs_by_the_same_plan(make: Callable[[str], Beside]) -> None:
    fed = make("sqlite")
    fed.take("a", "b")
    fed.lose()
    order = repair_order(fed.workplace, fed.region)
    assert any("is written again from its history: 2 ids: 1, 2" in line for line in order.plan)
    order.act()
    assert_goes_on(fed)


@pytest.mark.parametrize("kind", ["sqlite", SLOW[1]])
def test_a_repair_changes_nothing_if_another_owner_wrote_since_it_was_planned(
    make: Callable[[str], Beside], kind: str
) -> None:
    fed = make(kind)
    fed.take("a")
    saved = fed.save()
    fed.take("b")
    fed.restore(saved)
    (_, sink), store = fed.sink(), fed.workplace.store(fed.region)
    repair = outer_sinks.repair_of(store, fed.history(), sink)
    assert repair is not None
    stranger = pa.table({"value": ["z"], "_sequence_id": pa.array([7], pa.int64())})
    fed.workplace.store(fed.region).external(sink, epoch=8).copy(txn_version(8, 7), [7], [stranger])
    with pytest.raises(SplitBrain, match="while its repair was planned") as refused:
        outer_sinks.put_right(store, fed.history(), repair, 9, txn_version(9, 8))
    assert (7, "z") in fed.beside()
    follow(str(refused.value), "doctor", fed.workplace.home)
    interventions.resume(fed.workplace, fed.region, "put right")
    assert_goes_on(fed)


@pytest.mark.slow
def test_files_that_leave_are_kept_aside(make: Callable[[str], Beside]) -> None:
    fed = make("folder")
    fed.take("a")
    saved = saved_home(fed)
    fed = fed.reopened()
    fed.take("b")
    fed = restored_home(fed, saved)
    table_repair.mend(fed.workplace, fed.region)
    (kept,) = Path(fed.path).glob("_drainmark/aside/*/part-*2.csv")
    assert "b1" in kept.read_text()


@pytest.mark.slow
def test_a_sink_whose_table_was_dropped_after_everything_left_it_is_begun_anew(make: Callable[[str], Beside]) -> None:
    fed = make("sqlite")
    fed.take("a")
    reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=0)))
    fed.lose()
    assert told(fed) == []
    assert_goes_on(fed)
    assert_goes_on(fed.reopened())


def test_a_failover_in_the_middle_of_a_run_is_found_before_the_next_group_hides_it(
    make: Callable[[str], Beside],
) -> None:
    fed = make("sqlite")
    fed.take("a")
    saved = fed.save()
    for name in "bc":
        fed.write(name, [name])
        fed.add(name)

    def fail_over() -> None:
        with fed.owning():
            fed.process(1)
            fed.restore(saved)
            fed.process(1)

    with pytest.raises(SplitBrain, match="at id 1, but was at 2") as told_by_the_run:
        fail_over()
    with pytest.raises(Halted) as halted:
        fed.drain()
    follow(str(told_by_the_run.value), "doctor", fed.workplace.home)
    follow(str(halted.value), "resume", fed.workplace.home)
    assert_goes_on(fed)


class Adopting(Beside):
    """A region with a table that others made."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        theirs = RegionTable(
            name="lake/theirs", role=TableRole.APPEND, operator="theirs", schema_json=SCHEMA_JSON, adopted=True
        )
        return (*HandFed.tables.fget(self), theirs)  # type: ignore[attr-defined]


def test_an_adopted_table_ahead_of_a_restored_home_takes_no_later_group_for_an_old_one(
    make: Callable[[str], Beside],
) -> None:
    place = make("sqlite").workplace
    fed = Adopting(place, Path())
    columns = Schema([Field("value", PrimitiveType("string")), Field("_sequence_id", PrimitiveType("long"))])
    DeltaTable.create(
        place.home / "lake" / "theirs", columns, configuration={REGION_PROPERTY: fed.region},
        raise_if_key_not_exists=False,
        commit_properties=CommitProperties(app_transactions=[Transaction(app_id(fed.region), txn_version(7, 9))]),
    )  # fmt: skip
    with fed.owning():
        assert (fed.owner.epoch, fed.history().next_id) == (8, 10)


def test_a_rewind_to_a_time_keeps_nothing_that_was_committed_later_by_a_clock_that_is_behind(
    make: Callable[[str], Beside],
) -> None:
    fed = make("")
    fed.take("a")
    for name in "bc":
        fed.write(name, [name])
        fed.add(name)
    moment = dt.datetime.now(dt.UTC)
    with fed.owning():
        fed.process(1)
        fed.owner.ledger.outside = replace(fed.owner.ledger.outside, clock=lambda: time.time() - 3600)
        fed.process(1)
    assert resolve_target(fed.history(), RewindTarget(to_time=moment)) == 1
