"""`drainmark retract` on real runs: aggregates lose what a file brought, refusals name who keeps it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from followed import follow
from harness import opened, run_once, settle

from drainmark.jobs.errors import RetractRefused
from drainmark.orchestration.verbs import interventions, orders
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

REGION = "app/read"
_APP = """
import drainmark as dm
from pyspark.sql import functions as F

_SCHEMA = "k string, n bigint, x double, d decimal(9,2)"

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema=_SCHEMA, settle=0))
def read(scanned):
    return scanned

@dm.filter
def kept(read):
    return F.expr("coalesce(n, 0) <> 13")

{rest}
"""
_SUMS = """
dm.sink(kept, dm.DeltaAppend("rows"))
dm.sink(kept, dm.DeltaUpsert("newest", keys=["k"]))
sums = dm.aggregate(kept, keys=["k"], name="sums", values={
    "rows": dm.count(), "numbers": dm.count("n"), "total": dm.sum("n"), "mean": dm.mean("x"), "spread": dm.stddev("x"),
    "variance": dm.variance("n"), "amounts": dm.count("d"), "amount": dm.sum("d")})
dm.sink(sums, dm.DeltaUpsert("sums", keys=["k"]))
dm.sink(sums, dm.DatabaseUpsert("shop", "sums", keys=["k"]))
"""
TABLES = ("rows", "newest", "sums", "database/shop/sums")


@pytest.fixture
def place(tmp_path: Path, engine: SparkEngine) -> Iterator[Callable[[str], Workplace]]:
    made = []

    def at(name: str) -> Workplace:
        databases = {"shop": "sqlite:///{home}/shop.db"}
        (tmp_path / name).mkdir()
        found = Workplace(Settings(home=tmp_path / name, project_root=tmp_path, databases=databases))
        found.use_engine(engine)
        made.append(found)
        return found

    yield at
    for each in made:
        each.registry.close()


def code(tmp_path: Path, rest: str) -> Path:
    path = tmp_path / "app.py"
    path.write_text(_APP.format(rest=rest))
    return path


def run(workplace: Workplace, app: Path, inbox: Path, group: int = 1) -> None:
    found = opened(app, inbox)
    remember(workplace, found, found.region())
    run_once(workplace, found, max_group=group)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.csv").write_text(lines)
    settle(folder)


def shown(workplace: Workplace) -> dict[str, list[Any]]:
    """Return the rows of each table, without ids; floats by nine digits."""
    reader = RegionReader(workplace.settings, REGION)
    return {table: plain(reader.now(table).to_pylist()) for table in TABLES}


def plain(rows: list[dict[str, Any]]) -> list[Any]:
    def value(each: Any) -> Any:
        return float(f"{each:.9g}") if isinstance(each, float) and math.isfinite(each) else each

    return sorted(
        (tuple((name, value(each)) for name, each in row.items() if name not in ("_sequence_id", "source_file"))
         for row in rows), key=repr)  # fmt: skip


def lines(chance: random.Random) -> str:
    def line() -> str:
        n, x, d = (chance.choice(["", "0", str(chance.randrange(-9, 15))]) for _ in range(3))
        return f"{chance.choice('abcdef')},{n},{x},{d}\n"

    return "".join(line() for _ in range(chance.randrange(6)))


@pytest.mark.seed("RC3")
@pytest.mark.parametrize("group", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_aggregates_and_sinks_are_as_if_retracted_files_had_never_come(
    place: Callable[[str], Workplace], tmp_path: Path, group: int
) -> None:
    chance = random.Random(11 + group)
    app, inbox, other = code(tmp_path, _SUMS), tmp_path / "inbox", tmp_path / "other"
    files = {f"f{n:02}": lines(chance) for n in range(10)}
    write(inbox, **dict(list(files.items())[:6]))
    workplace = place("home")
    run(workplace, app, inbox, group)
    before = shown(workplace)
    orders.retract(workplace, REGION, ["f01.csv", "f04.csv"]).act()
    between = shown(workplace)
    write(inbox, **files)
    run(workplace, app, inbox, group)
    orders.retract(workplace, REGION, ["f00.csv"]).act()
    orders.retract(workplace, REGION, ["f07.csv", "f05.csv"]).act()
    found = shown(workplace)

    write(other, **{name: text for name, text in files.items() if name not in ("f00", "f01", "f04", "f05", "f07")})
    golden = place("golden")
    run(golden, app, other, 10)
    wanted = shown(golden)
    assert found == wanted

    interventions.reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=8)))
    assert shown(workplace) == between
    interventions.reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=6)))
    assert shown(workplace) == before
    run(workplace, app, inbox, group)
    orders.retract(workplace, REGION, [f"f0{n}.csv" for n in (0, 1, 4, 5, 7)]).act()
    assert shown(workplace) == wanted


@pytest.mark.seed("RC4")
@pytest.mark.parametrize(
    ("rest", "operator", "why"),
    [
        ('dm.sink(dm.deduplicate(kept, keys=["k"], name="once"), dm.DeltaAppend("rows"))', "once", "keeps"),
        ('dm.sink(dm.aggregate(kept, keys=["k"], values={"m": dm.max("n")}, name="most"),'
         ' dm.DeltaUpsert("rows", keys=["k"]))', "most", r"max\(n\)"),
        ('dm.sink(dm.aggregate(kept, keys=["k"], values={"m": dm.sum("n")}, name="sums"), dm.DeltaAppend("rows"))',
         "sums", "counts? the file"),
        ('dm.sink(kept, dm.DeltaAppend("rows"))\n'
         'dm.aggregate(kept, keys=["k"], values={"s": dm.sum("n")}, window=dm.sliding(rows=2), name="last_two")',
         "last_two", "keeps"),
        ('dm.sink(kept, dm.DeltaOverwrite("rows"))', None, "newest trigger"),
        ('dm.sink(kept, dm.FileSink("{home}/out"))', None, "writes files"),
    ],
    ids=["deduplicate", "max", "append of an aggregate", "unread sliding windows", "overwrite", "files"],
)  # fmt: skip
def test_who_keeps_what_cannot_be_taken_out_is_named_with_a_remedy_that_works(
    place: Callable[[str], Workplace], tmp_path: Path, rest: str, operator: str | None, why: str
) -> None:
    app, inbox = code(tmp_path, rest), tmp_path / "inbox"
    write(inbox, a="a,1,1,1\n", b="a,7,2,1\nb,2,,\n", c="a,3,,\n")
    workplace = place("home")
    run(workplace, app, inbox)
    with pytest.raises(RetractRefused, match=why) as refused:
        orders.retract(workplace, REGION, ["b.csv"])
    if operator is not None:
        assert refused.value.operator == operator
    follow(refused.value.remedy, "reset", workplace.home)
    run(workplace, app, inbox)
    states = {number: row.kind.value for number, row in workplace.history(REGION).states.items()}
    assert [*states.values()] == ["state", "skip", "state"]
