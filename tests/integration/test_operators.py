"""Every operator of the library, end to end through the runtime, on a few rows."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from harness import rows, run_once, settle

import drainmark as dm
import drainmark.jobs.state.keyed_state
from drainmark import F
from drainmark.jobs.errors import BadInput, Halted
from drainmark.jobs.graph.params import bind_params
from drainmark.jobs.protocol.history import manifest_of
from drainmark.jobs.regions.plan import compile_application
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

SCHEMA = "k string, n bigint, x double, price decimal(10,2), at timestamp"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
Row = dict[str, Any]


def opened(name: str, declare: Callable[[], Any], **params: Any) -> Opened:
    with dm.application(name) as declared:
        declare()
    application = dm.build_application(declared)
    bound = bind_params(application.params_class, params)
    return Opened(reference=name, plan=compile_application(application), params=bound)


@pytest.fixture
def place(tmp_path: Path, engine: SparkEngine) -> Iterator[Callable[..., Workplace]]:
    """Yield a function that makes a home of its own with its own settings."""
    made: list[Workplace] = []

    def make(name: str = "home", **settings: Any) -> Workplace:
        workplace = Workplace(Settings(home=tmp_path / name, project_root=tmp_path, **settings))
        workplace.use_engine(engine)
        made.append(workplace)
        return workplace

    yield make
    for workplace in made:
        workplace.registry.close()


# --- one application with every operator that vectorises ----------------------------------------------------------


def source_rows() -> list[list[Row]]:
    """Return the rows of four files: null keys and values, repeated keys, an empty file."""
    made: list[list[Row]] = [[], [], [], []]
    for index in range(18):
        number = (0, 0, 1, 3)[index % 4]
        made[number].append(
            {
                "k": (None, "a", "b", "c,d")[index * 7 % 4],
                "n": None if index == 5 else index * 5 % 11,
                "x": index / 4,
                "price": Decimal(index * 101) / 100,
                "at": NOON + dt.timedelta(minutes=index * 3),
            }
        )
    return made


def write_csv(folder: Path, files: Sequence[Sequence[Row]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(files):
        lines = [
            ",".join(["" if r["k"] is None else f'"{r["k"]}"', "" if r["n"] is None else str(r["n"]), str(r["x"]),
                      str(r["price"]), r["at"].strftime("%Y-%m-%dT%H:%M:%SZ")])
            for r in content
        ]  # fmt: skip
        (folder / f"{number}.csv").write_text("".join(f"{line}\n" for line in lines))
    settle(folder)


def everything(inbox: Path) -> Callable[[], None]:
    def declare() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
        def read(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def doubled(read: Any) -> Any:
            return read.withColumn("twice", F.col("n") * 2)

        @dm.filter
        def even(doubled: Any) -> Any:
            return F.col("n") % 2 == 0

        labels = dm.sql("labelled", inputs=[even])
        names = dm.lookup("names")

        @dm.functor(inputs=[labels, names])
        def named(labelled: Any, names: Any) -> Any:
            return labelled.join(names, "k", "left")

        dm.sink(named, dm.DeltaAppend("named"))
        dm.sink(doubled, dm.DeltaUpsert("newest", keys=["k"]))
        totals = dm.aggregate(
            read,
            name="totals",
            keys=["k"],
            values={
                "rows": dm.count(),
                "known": dm.count("n"),
                "sum": dm.sum("n"),
                "price": dm.sum("price"),
                "low": dm.min("n"),
                "high": dm.max("at"),
                "mean": dm.mean("n"),
                "opening": dm.first("n"),
                "closing": dm.last("n"),
                "distinct": dm.approx_distinct("n"),
                "numbers": dm.collect_set("n"),
                "bits": dm.Aggregation(partial=lambda: F.bit_or("n"), merge=F.bit_or, label="bits"),
                "range": dm.Aggregation(
                    partial={"low": lambda: F.min("x"), "high": lambda: F.max("x")},
                    merge={"low": F.min, "high": F.max},
                    finish=lambda p: p["high"] - p["low"],
                    label="range",
                ),
            },
        )  # fmt: skip
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
        dm.sink(totals, dm.DeltaAppend("total_changes"))
        windows = dm.aggregate(
            read, name="windows", keys=["k"], values={"rows": dm.count()}, window=dm.tumbling("at", minutes=20)
        )
        dm.sink(windows, dm.DeltaUpsert("windows", keys=["k", "window_start"]))

    return declare


def aggregated(taken: Sequence[Row]) -> Row:
    """Return the results of the aggregations for the rows of a key, in order."""
    known = [r["n"] for r in taken if r["n"] is not None]
    bits = 0
    for number in known:
        bits |= number
    return {
        "rows": len(taken), "known": len(known), "sum": sum(known) if known else None,
        "price": sum((r["price"] for r in taken), Decimal(0)), "low": min(known, default=None),
        "high": max(r["at"] for r in taken), "mean": sum(known) / len(known) if known else None,
        "opening": taken[0]["n"], "closing": taken[-1]["n"], "distinct": len(set(known)),
        "numbers": sorted(set(known)), "bits": bits if known else None,
        "range": max(r["x"] for r in taken) - min(r["x"] for r in taken),
    }  # fmt: skip


def window_of(row: Row) -> dt.datetime:
    seconds = row["at"].timestamp()
    return dt.datetime.fromtimestamp(seconds - seconds % 1200, dt.UTC)


def expected(files: Sequence[Sequence[Row]]) -> dict[str, list[Row]]:
    names = {"a": "Anna", "b": "Berta"}
    tables: dict[str, list[Row]] = {"named": [], "total_changes": []}
    by_key: dict[Any, list[Row]] = defaultdict(list)
    newest: dict[Any, Row] = {}
    totals: dict[Any, Row] = {}
    windows: dict[Any, Row] = {}
    for number, content in enumerate(files, start=1):
        tag = {"_sequence_id": number}
        for r in content:
            by_key[r["k"]].append(r)
            twice = None if r["n"] is None else r["n"] * 2
            newest[r["k"]] = {**r, "twice": twice, **tag}
            key = (r["k"], window_of(r))
            before = windows.get(key, {"rows": 0})["rows"]
            windows[key] = {"k": key[0], "window_start": key[1], "rows": before + 1, **tag}
            if r["n"] is not None and r["n"] % 2 == 0:
                label = None if r["k"] is None else f"key {r['k']}"
                tables["named"].append({"k": r["k"], "label": label, "twice": twice, "name": names.get(r["k"]), **tag})
        for key in {r["k"] for r in content}:
            totals[key] = {"k": key, **aggregated(by_key[key]), **tag}
            tables["total_changes"].append(totals[key])
    by_key_tables = {"newest": newest, "totals": totals, "windows": windows}
    return {**tables, **{name: list(content.values()) for name, content in by_key_tables.items()}}


def assert_tables(workplace: Workplace, region: str, wanted: Mapping[str, Sequence[Row]]) -> None:
    for table, content in wanted.items():
        found = rows(workplace, region, table)
        for row in found:
            row.pop("source_file", None)
        assert sorted(map(comparable, found)) == sorted(map(comparable, content)), table


def comparable(row: Row) -> str:
    return repr(sorted((name, plain(value)) for name, value in row.items()))


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 9)
    return value.isoformat() if isinstance(value, dt.datetime) else value


VARIANTS = {
    "one_group": {},
    "images_at_every_group": {"max_group": 2, "runs": 2, "images": True},
    "large_state": {"max_group": 2, "runs": 2, "images": True, "large_state": True},
    "large_groups": {"max_group": 2, "runs": 2, "settings": {"small_group_bytes": 0}, "images": True},
    "all_large": {
        "max_group": 2, "runs": 2, "settings": {"small_group_bytes": 0}, "images": True, "large_state": True
    },
}  # fmt: skip


@pytest.mark.seed("V143")
@pytest.mark.parametrize(
    "variant",
    [pytest.param(each, marks=() if each in ("one_group", "all_large") else pytest.mark.slow) for each in VARIANTS],
)
def test_every_operator_gives_the_rows_of_the_oracle_on_every_path(
    variant: str, place: Callable[..., Workplace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = VARIANTS[variant]
    if options.get("images"):
        monkeypatch.setattr(drainmark.jobs.state.keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
        monkeypatch.setattr(drainmark.jobs.state.keyed_state, "_IMAGE_CHANGE_FILES", 1)
    if options.get("large_state"):
        monkeypatch.setattr(drainmark.jobs.state.keyed_state, "MEMORY_STATE_BYTES", 0)
    workplace = place(**options.get("settings", {}))
    statement = tmp_path / "sql" / "all_of_it" / "labelled.sql"
    statement.parent.mkdir(parents=True)
    statement.write_text("select _sequence_id, k, concat('key ', k) as label, twice from {even}\n")
    write_deltalake(workplace.home / "lake" / "names", pa.table({"k": ["a", "b"], "name": ["Anna", "Berta"]}))
    files = source_rows()
    write_csv(tmp_path / "inbox", files)
    application = opened("all_of_it", everything(tmp_path / "inbox"))
    runs = options.get("runs", 1)
    limit = len(files) // runs if runs > 1 else None
    reports = [
        report
        for _ in range(runs)
        for report in run_once(workplace, application, max_group=options.get("max_group"), max_triggers=limit)
    ]
    assert reports[-1].last_id == len(files)
    assert_tables(workplace, "all_of_it/read", expected(files))
    history = workplace.history("all_of_it/read")
    assert [row.rows_in for row in history.states.values()] == [len(content) for content in files]
    manifests = [manifest for row in history.states.values() if (manifest := manifest_of(row))]
    assert {tuple((manifest.lookups or {}).items()) for manifest in manifests} == {(("names", 0),)}
    assert bool(manifests[0].images) == bool(options.get("images"))
    if variant == "one_group":
        assert len(reports) == 1, "a stream-static join, a filter and a statement vectorise"


@pytest.mark.slow
@pytest.mark.seed("V53")
def test_a_replay_looks_up_what_is_there_now_and_states_in_force_keep_what_they_read(
    workplace: Workplace, tmp_path: Path
) -> None:
    """A statement, a lookup and a state behind them, rewound between versions of the table that is looked up."""
    statement = tmp_path / "sql" / "priced" / "positive.sql"
    statement.parent.mkdir(parents=True)
    statement.write_text("select _sequence_id, k, n from {read} where n > 0")
    inbox, names = tmp_path / "inbox", str(workplace.home / "lake" / "names")
    inbox.mkdir()

    def declare() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def read(scanned: Any) -> Any:
            return scanned

        positive, looked_up = dm.sql("positive", inputs=[read]), dm.lookup("names")
        named = dm.functor(
            lambda positive, names: positive.join(names, "k"), name="named", inputs=[positive, looked_up]
        )
        totals = dm.aggregate(named, keys=["name"], values={"n": dm.sum("n")}, name="totals")
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["name"]))

    application = opened("priced", declare)

    def known_as(name: str) -> None:
        write_deltalake(names, pa.table({"k": ["a"], "name": [name]}), mode="overwrite")

    def totals() -> dict[str, int]:
        return {row["name"]: row["n"] for row in rows(workplace, "priced/read", "totals")}

    def looked_up() -> list[int]:
        manifests = map(manifest_of, workplace.history("priced/read").states.values())
        return [(manifest.lookups or {})["names"] for manifest in manifests if manifest]

    for name, line in (("Anna", "a,1\na,-5\n"), ("Ada", "a,10\n")):
        known_as(name)
        (inbox / f"{name}.csv").write_text(line)
        settle(inbox)
        run_once(workplace, application)
    assert (totals(), looked_up()) == ({"Anna": 1, "Ada": 10}, [0, 1])
    known_as("Ann")
    reset(workplace, plan_reset(workplace, "priced/read", RewindTarget(to=1)))
    assert totals() == {"Anna": 1}
    run_once(workplace, application)
    assert (totals(), looked_up()) == ({"Anna": 1, "Ann": 10}, [0, 2])
    reset(workplace, plan_reset(workplace, "priced/read", RewindTarget(to=0)))
    run_once(workplace, application)
    assert (totals(), set(looked_up())) == ({"Ann": 11}, {2})


def test_the_arguments_of_a_statement_are_bound(
    workplace: Workplace, tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    statement = tmp_path / "sql" / "bound" / "long.sql"
    statement.parent.mkdir(parents=True)
    statement.write_text("select _sequence_id, value from {lines} where length(value) > {size}")

    def declare() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(tmp_path / "inbox"), settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.sql("long", inputs=[lines], arguments={"size": 2}), dm.DeltaAppend("long"))

    write("1.txt", "a\nbbb\n")
    settle(tmp_path / "inbox")
    run_once(workplace, opened("bound", declare))
    assert_tables(workplace, "bound/lines", {"long": [{"value": "bbb", "_sequence_id": 1}]})


# --- per_trigger, formats, several outputs ------------------------------------------------------------------------


def test_a_per_trigger_function_is_called_once_an_id_and_may_do_what_it_likes(
    workplace: Workplace, tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    seen: list[int] = []

    def declare() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(tmp_path / "inbox"), settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        @dm.per_trigger
        def longest(lines: Any) -> Any:
            seen.append(1)
            return lines.orderBy(F.length("value").desc(), "value").limit(1).select("value")

        dm.sink(longest, dm.DeltaAppend("longest"))

    for number, text in enumerate(["aa\nb\n", "ccc\n", "d\nee\n"]):
        write(f"{number}.txt", text)
    settle(tmp_path / "inbox")
    reports = run_once(workplace, opened("longest_lines", declare))
    assert [report.triggers for report in reports] == [1, 1, 1]
    assert len(seen) == 4, "once over the empty frame of the analysis, then once an id"
    assert_tables(
        workplace, "longest_lines/lines",
        {"longest": [{"_sequence_id": n, "value": v} for n, v in ((1, "aa"), (2, "ccc"), (3, "ee"))]},
    )  # fmt: skip


def simple(inbox: Path, **scan: Any) -> Callable[[], None]:
    def declare() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), settle=0, **scan))
        def read(scanned: Any) -> Any:
            return scanned

        dm.sink(read, dm.DeltaAppend("copied"))

    return declare


RECORDS = [[{"id": 1, "name": "é"}, {"id": 2, "name": None}], [], [{"id": 3, "name": "z"}]]


def as_csv(records: Sequence[Row]) -> bytes:
    return "".join(["id,name\n", *(f"{r['id']},{r['name'] or ''}\n" for r in records)]).encode()


def as_json(records: Sequence[Row]) -> bytes:
    return "".join(f"{json.dumps(r)}\n" for r in records).encode()


def as_parquet(records: Sequence[Row]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(records), pa.schema([("id", pa.int64()), ("name", pa.string())])), sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("kind", "suffix", "encode", "options"),
    [
        ("csv", ".csv", as_csv, {"header": "true"}),
        ("csv", ".csv.gz", lambda r: gzip.compress(as_csv(r)), {"header": "true"}),
        ("json", ".json", as_json, {}),
        ("parquet", ".parquet", as_parquet, {}),
    ],
    ids=["csv", "gzip", "json", "parquet"],
)
def test_every_format_is_read_row_by_row(  # noqa: PLR0917
    kind: str, suffix: str, encode: Any, options: dict[str, str], workplace: Workplace, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number, records in enumerate(RECORDS):
        (inbox / f"{number}{suffix}").write_bytes(encode(records))
    settle(inbox)
    application = opened("formats", simple(inbox, format=kind, schema="id bigint, name string", options=options))
    assert [report.triggers for report in run_once(workplace, application)] == [3]
    wanted = [{**r, "_sequence_id": n} for n, records in enumerate(RECORDS, start=1) for r in records]
    assert_tables(workplace, "formats/read", {"copied": wanted})
    assert [row.rows_in for row in workplace.history("formats/read").states.values()] == [2, 0, 1]


def test_one_start_has_several_outputs_with_schemas_of_their_own(workplace: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    for path, text in (("orders/1.csv", "1,5\n2,7\n"), ("payments/1.csv", "1\n"), ("orders/2.csv", "3,9\n")):
        (inbox / path).parent.mkdir(parents=True, exist_ok=True)
        (inbox / path).write_text(text)
    settle(inbox)

    def declare() -> None:
        schemas = {"orders": "id bigint, amount bigint", "payments": "id bigint"}

        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(
                path=str(inbox), format="csv", schema=schemas, settle=0,
                outputs={"orders": "orders/*.csv", "payments": "payments/*.csv"},
            )
        )  # fmt: skip
        def landing(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def large(landing__orders: Any) -> Any:
            return landing__orders.where("amount > 5")

        dm.sink(large, dm.DeltaAppend("large"))
        dm.sink(landing["payments"], dm.DeltaAppend("paid"))

    run_once(workplace, opened("landing_app", declare))
    states = workplace.history("landing_app/landing").states
    ids = {row.trigger_uri.rpartition("inbox/")[2]: number for number, row in states.items()}
    assert_tables(
        workplace, "landing_app/landing",
        {
            "large": [
                {"id": 2, "amount": 7, "_sequence_id": ids["orders/1.csv"]},
                {"id": 3, "amount": 9, "_sequence_id": ids["orders/2.csv"]},
            ],
            "paid": [{"id": 1, "_sequence_id": ids["payments/1.csv"]}],
        },
    )  # fmt: skip


def test_a_time_without_a_zone_stays_one(workplace: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "1.json").write_text('{"at": "2026-01-01T12:00:00", "n": 1}\n')
    settle(inbox)
    run_once(workplace, opened("times", simple(inbox, format="json", schema="at timestamp_ntz, n int")))
    (found,) = rows(workplace, "times/read", "copied")
    assert found["at"] == dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - that is the point


# --- input that cannot be read ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("csv", b"1,a\n", b"2,b\nnonsense,c,d\n"),
        ("json", b'{"id": 1, "name": "a"}\n', b'{"id": 2, "name": "b"}\n{"id": \n'),
        ("text.gz", gzip.compress(b"1,a\n" * 1000), gzip.compress(bytes(range(256)) * 400)[:-200]),
    ],
    ids=["csv", "json", "truncated gzip"],
)
def test_a_file_that_cannot_be_read_halts_at_once_and_is_named_and_the_others_are_in(
    kind: str, good: bytes, bad: bytes, workplace: Workplace, tmp_path: Path
) -> None:
    inbox, suffix = tmp_path / "inbox", f".{kind}"
    inbox.mkdir()
    for number, content in enumerate((good, good, bad, good)):
        (inbox / f"{number}{suffix}").write_bytes(content)
    settle(inbox)
    scan = {} if kind == "text.gz" else {"format": kind, "schema": "id bigint, name string"}
    application = opened("broken", simple(inbox, on_bad="halt", **scan))
    with pytest.raises(Halted) as caught:
        run_once(workplace, application)
    cause = caught.value.__cause__
    assert isinstance(cause, BadInput)
    bad_uri = str(inbox / f"2{suffix}")
    assert bad_uri in cause.message
    assert cause.operator == "read"
    history = workplace.history("broken/read")
    assert history.halt is not None
    assert history.halt.detail["trigger"] == bad_uri
    assert history.epoch == 1, "halted by the first run, without five retries"
    assert sorted(row.trigger_uri for row in history.states.values()) == [
        str(inbox / f"{number}{suffix}") for number in (0, 1)
    ]
    assert {row["_sequence_id"] for row in rows(workplace, "broken/read", "copied")} == set(history.states)
    with pytest.raises(Halted):
        run_once(workplace, application)
