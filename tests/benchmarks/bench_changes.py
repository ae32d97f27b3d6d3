"""Part `changes`: a million changes of a million keys in CSV files, applied as newest rows, and as a history.

The changes are inserts, updates and deletes in no order: a change may come long after a later one of its key. (a) SCD
type 1: the newest row of each key by its sequence; a delete counts also for changes that come after it. (b) SCD type 2:
the history of each key, a row for each change, with the sequence of the next change as its end. Ours is
`dm.apply_changes` into `dm.DeltaUpsert`.

The peer is Structured Streaming with `foreachBatch` and MERGE of delta-spark, as a competent engineer writes it. Type
1: the last change of each key in the batch is merged if its sequence is not smaller; a delete stays in the table as a
row with a mark, or late changes would bring the key back, and readers leave such rows out. Type 2: the rows of the
batch's keys are joined with the batch, the ends computed again, and rows that are new or have another end merged. Both
take the same files, as many in a trigger, on the same session. Figures are seconds of the whole run, from the scan or
the start of the query, medians of the rounds; each runs once before to warm up, and every table is compared with plain
Python.

Spark's own `create_auto_cdc_flow` (4.2, type 1 only) is no peer here: it refuses Delta tables, which do not implement
`SupportsRowLevelOperations` (`AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE`), and Spark comes with no catalog that does.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_ours
from bench_input import WrongResult
from bench_results import Figures, ratios, spread
from bench_streaming import started
from rich.console import Console
from rich.table import Table

import drainmark as dm
from drainmark import F
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OURS, PEER = "Drainmark", "foreachBatch and MERGE"
SCHEMA = "id bigint, n bigint, op string, city string, amount double"
"""`n` is the sequence; no two changes have the same."""
_DELETES = 0.1
_LATE = 0.2
Change = tuple[int, int, str, str, float]
Rows = dict[Any, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Ran:
    """The seconds of a run, its table, and the seconds of our steps."""

    seconds: float
    table: DataFrame
    steps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    changes: int
    keys: int
    files: int
    a_trigger: int


def size_of(*, quick: bool) -> Size:
    if quick:
        return Size(changes=4_000, keys=2_000, files=4, a_trigger=2)
    return Size(changes=1_000_000, keys=1_000_000, files=40, a_trigger=10)


def write_changes(folder: Path, size: Size, *, seed: int = 7) -> list[Change]:
    """Write files of changes, of which a share comes later than its sequence says; return the changes."""
    chance = random.Random(seed)
    found: list[Change] = []
    for n in range(size.changes):
        op = "d" if chance.random() < _DELETES else "u"
        found.append(
            (chance.randrange(size.keys), n, op, f"city {chance.randrange(1000)}", chance.randrange(10**6) / 4)
        )
    reach = size.changes // 4
    found.sort(key=lambda change: change[1] + (chance.randrange(reach) if chance.random() < _LATE else 0))
    folder.mkdir(parents=True)
    each = size.changes // size.files
    for number in range(size.files):
        lines = (f"{','.join(map(str, change))}\n" for change in found[number * each :][:each])
        (folder / f"{number:06d}.csv").write_text("".join(lines))
    return found


def expected(changes: list[Change], scd_type: int) -> Rows:
    """Return the rows that a table must have in the end: by key, or by key and beginning."""
    by_key: dict[int, list[Change]] = {}
    for change in sorted(changes, key=lambda change: change[1]):
        by_key.setdefault(change[0], []).append(change)
    if scd_type == 1:
        return {key: (c[1], *c[3:]) for key, found in by_key.items() if (c := found[-1])[2] != "d"}
    return {
        (key, change[1]): (*change[3:], after[1] if after else None)
        for key, found in by_key.items()
        for change, after in zip(found, [*found[1:], None], strict=True)
        if change[2] != "d"
    }


def check(who: str, found: DataFrame, wanted: Rows, scd_type: int) -> None:
    """Compare a table with what it must be.

    Raises:
        WrongResult: it is another.
    """
    columns = ["id", "n", "city", "amount"] + (["valid_to"] if scd_type == 2 else [])
    table = found.select(*columns).toArrow()
    values = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    rows = {(row[0], row[1]) if scd_type == 2 else row[0]: row[2 if scd_type == 2 else 1 :] for row in values}
    if len(values) != len(wanted) or rows != wanted:
        raise WrongResult(f"{who}, type {scd_type}: {len(values)} rows, expected {len(wanted)}, or others")


# --- ours ---------------------------------------------------------------------------------------------------------


def opened(inbox: Path, scd_type: int) -> Opened:
    with dm.application(f"scd{scd_type}") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
        def changes(scanned: Any) -> Any:
            return scanned

        applied = dm.apply_changes(
            changes, keys=["id"], sequence_by="n", apply_as_deletes="op = 'd'", except_columns=["op"],
            stored_as_scd_type=scd_type,
        )  # fmt: skip
        keys = ["id"] if scd_type == 1 else ["id", "valid_from"]
        dm.sink(applied, dm.DeltaUpsert("applied", keys=keys))
    return open_application(dm.build_application(declared))


def ours(engine: SparkEngine, inbox: Path, home: Path, size: Size, scd_type: int) -> Ran:
    """Scan a folder and process it until idle."""
    began = time.monotonic()
    workplace = Workplace(Settings(home=home, project_root=bench_ours.HERE))
    workplace.use_engine(engine)
    application = opened(inbox, scd_type)
    region = application.region()
    scan_region(workplace, region)
    run = region_run(workplace, application, region, max_group=size.a_trigger)
    run.claim()
    claimed = time.monotonic()
    steps = bench_ours.steps_of(list(run.groups()), time.monotonic() - claimed)
    run.hand_over()
    seconds = time.monotonic() - began
    workplace.registry.close()
    return Ran(seconds, engine.session.read.format("delta").load(str(home / "lake" / "applied")), steps)


# --- the peer -----------------------------------------------------------------------------------------------------


def peer(engine: SparkEngine, inbox: Path, home: Path, size: Size, scd_type: int) -> Ran:
    """Run the query over a folder until idle; its table is as readers see it."""
    session, table = engine.session, str(home / "table")
    home.mkdir(parents=True)
    more = ", valid_to bigint" if scd_type == 2 else ""
    began = time.monotonic()
    session.createDataFrame([], SCHEMA + more).write.format("delta").save(table)
    rows = session.readStream.schema(SCHEMA).option("columnPruning", True)
    rows = rows.option("maxFilesPerTrigger", size.a_trigger).csv(str(inbox))
    merge = merge_newest if scd_type == 1 else merge_versions
    writer = rows.writeStream.foreachBatch(lambda batch, number: merge(batch, table))
    query = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.monotonic() - began
    return Ran(seconds, session.read.format("delta").load(table).where("op != 'd'"))


def merge_newest(batch: DataFrame, table: str) -> None:
    from delta.tables import DeltaTable

    last = batch.groupBy("id").agg(F.max_by(F.struct("n", "op", "city", "amount"), "n").alias("last"))
    target = DeltaTable.forPath(batch.sparkSession, table).alias("target")
    merger = target.merge(last.select("id", "last.*").alias("source"), "target.id = source.id")
    merger.whenMatchedUpdateAll("source.n >= target.n").whenNotMatchedInsertAll().execute()


def merge_versions(batch: DataFrame, table: str) -> None:
    from delta.tables import DeltaTable
    from pyspark.sql import Window

    batch.persist()
    known = batch.sparkSession.read.format("delta").load(table)
    known = known.join(batch.select("id").distinct(), "id", "left_semi").withColumn("is_new", F.lit(False))
    new = batch.withColumn("valid_to", F.lit(None).cast("bigint")).withColumn("is_new", F.lit(True))
    ends = F.lead("n").over(Window.partitionBy("id").orderBy("n"))
    versions = new.unionByName(known).withColumn("end", ends)
    changed = versions.where("is_new or not (valid_to <=> end)").drop("valid_to", "is_new")
    target = DeltaTable.forPath(batch.sparkSession, table).alias("target")
    source = changed.withColumnRenamed("end", "valid_to").alias("source")
    merger = target.merge(source, "target.id = source.id and target.n = source.n")
    merger.whenMatchedUpdate(set={"valid_to": "source.valid_to"}).whenNotMatchedInsertAll().execute()
    batch.unpersist()


# --- the part -----------------------------------------------------------------------------------------------------

CONTENDERS: Mapping[str, Callable[..., Ran]] = {OURS: ours, PEER: peer}


def measure(console: Console, *, quick: bool, root: Path, rounds: int, master: str, conf: Sequence[str]) -> Figures:
    """Apply changes as newest rows and as histories."""
    size, figures = size_of(quick=quick), dict[str, float]()
    engine = started(master, conf, root, console)
    warm = size_of(quick=True)
    loads = {"warm": (warm, write_changes(root / "warm", warm)), "full": (size, write_changes(root / "full", size))}
    for scd_type in (1, 2):
        seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for number in range(-1, rounds):
            load = "warm" if number < 0 else "full"
            its_size, changes = loads[load]
            wanted = expected(changes, scd_type)
            for name, run in list(CONTENDERS.items())[:: -1 if number % 2 else 1]:
                home = root / f"home-{scd_type}-{number}-{'ours' if name == OURS else 'peer'}"
                ran = run(engine, root / load, home, its_size, scd_type)
                check(name, ran.table, wanted, scd_type)
                if number >= 0:
                    seconds[name].append(ran.seconds)
                    console.print(f"[dim]type {scd_type}, {name}: {ran.seconds:.2f} s[/dim]")
                for step, its_seconds in ran.steps.items():
                    figures[f"changes_scd{scd_type}_step_ms_{step}"] = round(its_seconds / its_size.files * 1000, 2)
        whole, each = ratios(seconds[OURS], {PEER: seconds[PEER]})
        console.print(table_of(scd_type, size, seconds))
        key = f"changes_scd{scd_type}_ratio"
        figures |= {**spread(key, each), key: round(whole, 3)}
        figures[f"changes_scd{scd_type}_per_second"] = size.changes / statistics.median(seconds[OURS])
        figures[f"changes_scd{scd_type}_per_second_peer"] = size.changes / statistics.median(seconds[PEER])
    return figures


def table_of(scd_type: int, size: Size, seconds: Mapping[str, list[float]]) -> Table:
    table = Table(title=f"SCD type {scd_type}: {size.changes} changes, {size.keys} keys", title_justify="left")
    for column in ("", "changes/s", "rounds, s"):
        table.add_column(column, justify="left" if not column else "right")
    for name, rounds in seconds.items():
        rate = size.changes / statistics.median(rounds)
        table.add_row(name, f"{rate:,.0f}", " ".join(f"{value:.2f}" for value in rounds))
    return table
