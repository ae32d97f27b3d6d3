"""Names and values that are commands of a terminal or of SQL, and pairs of names that differ only in their bytes."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import run_once, settle

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import DeclarationError
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.checkpoints.as_of import RegionReader, read_at
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.seed("RT12")]

ESCAPES = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e"
FILES = (
    f"1{ESCAPES}.csv", "2'; drop table drainmark_trigger; --.csv", unicodedata.normalize("NFC", "3é.csv"),
    unicodedata.normalize("NFD", "3é.csv"), "4[red]%s{0}.csv", "5*?.csv",
)  # fmt: skip
KEY, TWIN = "k' or 1=1 --", unicodedata.normalize("NFD", "é")
COLUMNS = (KEY, "é", TWIN, "[bold]v[/bold]")


def app() -> None:
    schema = ", ".join(f"`{name}` {'bigint' if name == COLUMNS[-1] else 'string'}" for name in COLUMNS)

    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema=schema))
    def rows(scanned: Any) -> Any:
        return scanned

    totals = dm.aggregate(rows, keys=[KEY, TWIN], values={"total": dm.sum(f"`{COLUMNS[-1]}`")}, name="totals")
    dm.sink(totals, dm.DeltaUpsert("totals", keys=[KEY, TWIN]))
    dm.sink(rows, dm.DeltaAppend("rows"))


def written(result: Result, name: str, text: str) -> None:
    path = result.home.parent / "inbox" / "rows" / name
    path.write_text(text)
    os.utime(path, (1e9, 1e9))


def test_they_are_read_kept_apart_and_shown_without_effect(
    run_app: Callable[..., Result], capfd: pytest.CaptureFixture[str]
) -> None:
    result = run_app(app, {"0.csv": "plain,x,y,1\n"})
    for number, name in enumerate(FILES):
        written(result, name, f"'; select 1; --{ESCAPES},é,{TWIN},{number}\n{ESCAPES}bad,line\n")
    result.run()
    found = result.sink("totals", ids=True)
    assert [(row[KEY], row["total"]) for row in found if row[KEY] != "plain"] == [(f"'; select 1; --{ESCAPES}", 15)]
    assert [row[TWIN] for row in found] == [TWIN, "y"]
    rows = result.sink("rows")
    assert len(rows) == 1 + len(FILES)
    assert {os.path.basename(row["source_file"]) for row in rows} == {"0.csv", *FILES}
    assert {(row["é"], row[TWIN]) for row in rows} == {("x", "y"), ("é", TWIN)}
    newest = result.history[-1]["trigger"]
    result.close()
    capfd.readouterr()
    verbs = (
        ["history", "app"], ["status", "app"], ["show", "totals"], ["show", "rows"], ["show", "app_quarantine"],
        ["trace", "app/rows", "--file", newest], ["trace", "app/rows", "--sequence", "2"], ["doctor", "--quick"],
        ["quarantine", "list", "app/rows"], ["reset", "app/rows", "--to", "0"], ["skip", "app/rows", "--file", ESCAPES,
        "--reason", ESCAPES], ["reset", "app/rows", "--to-file", ESCAPES], ["show", ESCAPES], ["status", ESCAPES],
    )  # fmt: skip
    for verb in verbs:
        for more in ([], ["--json"]):
            code = invoke([*verb, *more, "--home", str(result.home)])
            told = capfd.readouterr()
            obeyed = [each for each in told.out + told.err if each not in "\n\t" and not each.isprintable()]
            assert not obeyed, (verb, code, obeyed)
            assert told.out or told.err, (verb, code)


ODD = ("order", "select", "lateral", 'a"b', "a'b; drop table t; --", "a.b", "a\nb", "%s", "%(x)s%%", "{0}", "é☃", ":x",
       "a\\b", "a,b(c)=d", " a ", "x" * 60)  # fmt: skip
MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')"
SINKS: dict[str, tuple[Callable[[Sequence[str]], Any], str]] = {
    "append": (lambda names: dm.DeltaAppend("select", partition_by=names[:2], cluster_by=names[2:]), "lake/select"),
    "upsert": (lambda keys: dm.DeltaUpsert("select", keys=keys), "lake/select"),
    "adopted append": (lambda _: dm.DeltaAppend("select", adopt=True), "lake/select"),
    "adopted upsert": (lambda keys: dm.DeltaUpsert("select", keys=keys, adopt=True), "lake/select"),
    "overwrite": (lambda _: dm.DeltaOverwrite("select"), "lake/select"),
    "sqlite append": (lambda _: dm.DatabaseAppend("lite", "select"), "database/lite/select"),
    "sqlite upsert": (lambda keys: dm.DatabaseUpsert("lite", "select", keys=keys), "database/lite/select"),
    "postgresql append": (lambda _: dm.DatabaseAppend("pg", "select"), "database/pg/select"),
    "postgresql upsert": (lambda keys: dm.DatabaseUpsert("pg", "select", keys=keys), "database/pg/select"),
    "csv files": (lambda _: dm.FileSink("{home}/select"), "files/home/select"),
    "json files": (lambda _: dm.FileSink("{home}/select", format="json"), "files/home/select"),
}


@pytest.fixture
def shop(tmp_path: Path, engine: SparkEngine, request: pytest.FixtureRequest) -> Iterator[Workplace]:
    databases = {"lite": "sqlite:///{home}/shop.db"}
    if request.node.callspec.params.get("kind", "").startswith("postgresql"):
        databases["pg"] = request.getfixturevalue("postgres_url")
    (tmp_path / "home").mkdir()
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases))
    place.use_engine(engine)
    yield place
    place.registry.close()


def named(inbox: Path, names: Sequence[str], *targets: Any) -> Opened:
    """Return an application with columns of these names, each with a line's first value; `n` has the second value."""
    with dm.application("select") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def order(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def group(order: Any) -> Any:
            return dm.select(order, *(F.col("k").alias(name) for name in names), "n")

        for target in targets:
            dm.sink(group, target)
    return open_application(dm.build_application(declared))


SMALL, LARGE = 1 << 30, 0
OFTEN = (("upsert", LARGE), ("postgresql append", SMALL), ("csv files", SMALL))
"""The sinks of the default run, and how they get their rows: a table, a database, and files."""


@pytest.mark.parametrize(
    ("kind", "small_group_bytes"),
    [
        pytest.param(kind, way, marks=() if (kind, way) in OFTEN else pytest.mark.slow)
        for kind in SINKS
        for way in (SMALL, LARGE)
    ],
)
def test_names_that_are_sql_are_names_in_every_sink_and_after_a_rewind(
    shop: Workplace, tmp_path: Path, kind: str, small_group_bytes: int
) -> None:
    shop.settings = shop.settings.model_copy(update={"small_group_bytes": small_group_bytes})
    target, table = SINKS[kind]
    names = ODD[3:6] if kind.startswith("adopted") else ODD
    if kind.startswith("adopted"):
        columns = ", ".join(f"`{name}` STRING" for name in names)
        root = shop.home / table
        shop.engine.session.sql(f"CREATE TABLE delta.`{root}` ({columns}, n BIGINT) USING delta {MAPPED}")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number, text in enumerate(("a,1\nb,2\n", "a,3\n")):
        (inbox / f"{number}.csv").write_text(text)
    settle(inbox)
    application = named(inbox, names, target(names))
    run_once(shop, application)

    def seen(rows: Any) -> list[Any]:
        return sorted(([row[name] for name in names], row["n"]) for row in rows.to_pylist())

    def visible() -> list[Any]:
        return seen(RegionReader(shop.settings, "select/order").visible(table))

    first, both = [(["a"] * len(names), 1), (["b"] * len(names), 2)], visible()
    last = (["a"] * len(names), 3)
    left = {"upsert": first[1:], "overwrite": []}.get(kind.rpartition(" ")[2], first)
    assert both == sorted([*left, last])
    assert seen(read_at("select/order", table, at=1, home=str(shop.home))) == first
    reset(shop, plan_reset(shop, "select/order", RewindTarget(to=1)))
    assert visible() == first
    run_once(shop, application)
    assert visible() == both


@pytest.mark.parametrize("kind", ["append", "adopted upsert", "sqlite upsert", "csv files"])
def test_a_backtick_in_a_name_is_refused_before_anything_is_claimed(shop: Workplace, tmp_path: Path, kind: str) -> None:
    (tmp_path / "inbox").mkdir()
    application = named(tmp_path / "inbox", ["a`b"], SINKS[kind][0](["a`b"]))
    with pytest.raises(DeclarationError, match="'a`b'") as caught:
        run_once(shop, application)
    (violation,) = caught.value.violations
    assert (violation.rule, violation.operator) == ("COLUMN_NAME", application.plan.regions[0].operators[-1].name)
    assert not shop.store("select/order").checkpoint.exists()
