"""No value differs from the file: what is no value of its column is quarantined on every way (I12)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness import LONG_AGO, run_once

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.graph.context import OperatorContext
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

SCHEMA = "k string, at timestamp, amount decimal(10,2)"
GOOD = ("a,2026-01-01T10:00:00Z,1.25", "b,2026-01-01 11:30:00,0.5", "c,,100", "d,2026-01-01T10:00:00.5+01:00,1.50")
BAD = ("e,12:34,1.25", "f,T12:34,1.25", "g,2026-01-01T10:00:00Z,0.005", "h,2026-01-01T10:00:00Z,1e-3")
SPECIAL = ("i,now,1", "j,today,1", "k,yesterday,1", "l,epoch,1")


WAYS = {"large group": 0, "dm.parse": 8 << 20}
"""The largest group that the run's process reads itself, for each way."""


def as_json(line: str) -> str:
    k, at, amount = line.split(",")
    return f'{{"k":"{k}","at":{f"{chr(34)}{at}{chr(34)}" if at else "null"},"amount":{amount}}}'


FILES = {
    "1.csv": [*GOOD, *BAD], "2.csv": list(GOOD), "3.csv": [*SPECIAL, *GOOD],
    "1.json": [as_json(line) for line in (*GOOD, *BAD)], "2.json": [as_json(line) for line in GOOD],
    "3.json": [as_json(line) for line in (*SPECIAL, *GOOD)] + ['{"k":"m","AT":"2026-01-01T10:00:00Z","amount":1}'],
}  # fmt: skip


NESTED = "k string, s struct<a: int, `b.c`: struct<d: int>>, l array<struct<d: int>>, m map<string, struct<e: int>>"
NESTED_GOOD = (
    '{"k":"a","s":{"a":1,"b.c":{"d":2}},"l":[{"d":3},null],"m":{"X":{"e":4},"x":{"e":5}}}',
    '{"k":"A","s":{"a":1,"A":9,"D":8},"l":[{"E":9},{}],"m":{"d":{"f":{"E":1}}}}',
    '{"k":"\\"A\\":","s":null,"l":[],"m":{}}',
)
NESTED_BAD = (
    '{"k":"b","s":{"A":1}}', '{"k":"c","s":{"b.c":{"D":2}}}', '{"k":"d","l":[{"d":3},{"D":3}]}',
    '{"k":"e","m":{"x":{"e":4},"y":{"E":4}}}', '{"k":"f","s":{"B.C":{"d":1}}}',
)  # fmt: skip


def declare(inbox: Path, form: str, way: str, schema: str = SCHEMA) -> Any:
    with dm.application("changed") as declared:
        parsed = way == "dm.parse"
        scan = dm.DirectoryScan(
            path=str(inbox), pattern=f"*.{form}", format="text" if parsed else form,
            schema=None if parsed else schema, settle=0, max_bad_ratio=1,
        )  # fmt: skip

        @dm.consistent(trigger="operator-driven")
        @dm.source(scan)
        def events(scanned: Any) -> Any:
            return scanned

        rows = dm.parse(events, "value", format=form, schema=schema, name="rows") if parsed else events
        dm.sink(rows, dm.DeltaAppend("rows"))
    return open_application(dm.build_application(declared))


@pytest.mark.seed("RT5", "RT11")
@pytest.mark.parametrize("form", ["csv", pytest.param("json", marks=pytest.mark.slow)])
def test_small_and_large_groups_and_parse_agree_on_what_is_bad(tmp_path: Path, engine: SparkEngine, form: str) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for name, lines in FILES.items():
        (inbox / name).write_text("".join(f"{line}\n" for line in lines))
        os.utime(inbox / name, (LONG_AGO, LONG_AGO))
    found = {}
    for way, small in WAYS.items():
        place = Workplace(Settings(home=tmp_path / way, project_root=tmp_path, small_group_bytes=small))
        place.use_engine(engine)
        try:
            run_once(place, declare(inbox, form, way))
            store = place.store("changed/events")
            rows = store.table("lake/rows").read().to_pylist()
            bad = store.table("lake/changed_quarantine").read().to_pylist()
        finally:
            place.registry.close()
        plain = sorted(repr([row[name] for name in ("_sequence_id", "k", "at", "amount")]) for row in rows)
        found[way] = (plain, sorted((row["_sequence_id"], row["raw"]) for row in bad))
    assert found["large group"] == found["dm.parse"]
    rows, bad = found["large group"]
    assert len(rows) == 3 * len(GOOD)
    assert bad == sorted(
        (number, line)
        for number in (1, 3)
        for line in FILES[f"{number}.{form}"]
        if line[0] != "#" and line not in (GOOD if form == "csv" else [as_json(good) for good in GOOD])
    )


@pytest.mark.seed("I12")
def test_names_inside_of_fields_count_letter_by_letter_on_every_way(tmp_path: Path, engine: SparkEngine) -> None:
    """This holds in structs, arrays and maps, but not beside the declared name, in map keys or in undeclared parts."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "1.json").write_text("".join(f"{line}\n" for line in (*NESTED_GOOD, *NESTED_BAD)))
    os.utime(inbox / "1.json", (LONG_AGO, LONG_AGO))
    for way, small in WAYS.items():
        place = Workplace(Settings(home=tmp_path / way, project_root=tmp_path, small_group_bytes=small))
        place.use_engine(engine)
        try:
            run_once(place, declare(inbox, "json", way, NESTED))
            store = place.store("changed/events")
            good = store.table("lake/rows").read().to_pylist()
            bad = store.table("lake/changed_quarantine").read().to_pylist()
        finally:
            place.registry.close()
        assert sorted(row["raw"] for row in bad) == list(NESTED_BAD), way
        assert sorted(row["k"] for row in good) == ['"A":', "A", "a"], way


@pytest.mark.seed("I12")
@pytest.mark.parametrize("small", [0, 8 << 20], ids=["large", "small"])
def test_a_text_that_nobody_can_read_again_is_committed_on_no_way(
    tmp_path: Path, engine: SparkEngine, small: int
) -> None:
    """A large group committed it: then its publish failed, in each run anew, or nobody could read the state."""

    def sunk(texts: Any) -> None:
        dm.sink(texts, dm.DeltaUpsert("newest", keys=["n"]))

    def kept(texts: Any) -> None:
        counts = dm.aggregate(texts, keys=["t"], values={"rows": dm.count()}, name="counts")
        shown = dm.functor(lambda counts: dm.select(counts, "rows"), name="shown", inputs=[counts])
        dm.sink(shown, dm.DeltaAppend("shown"))

    for number, ends in enumerate((sunk, kept)):

        def app(ends: Any = ends) -> None:
            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="n int, h string", settle=0))
            def rows(scanned: Any) -> Any:
                return scanned

            texts = dm.functor(
                lambda rows: dm.select(rows, "n", F.unhex("h").cast("string").alias("t")), name="texts", inputs=[rows]
            )
            ends(texts)

        home = tmp_path / f"{number}" / "home"
        result = dm.testing.run_app(app, None, home=home, engine=engine, settings={"small_group_bytes": small})
        result.add({"1.csv": "1,61\n2,81\n"})
        with pytest.raises(OperatorFailed, match=r"column 't' holds values that nobody can read again") as caught:
            result.run()
        assert caught.value.operator in ("newest_sink", "counts")
        assert "make_valid_utf8" in (caught.value.remedy or "")
        assert result.history == []
        result.close()


@pytest.mark.seed("RT11")
def test_rounding_is_asked_for(tmp_path: Path, engine: SparkEngine) -> None:
    files = {"1.csv": "a,0.005\nb,1.25\n"}

    def app() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(
            path="inbox", pattern="*.csv", format="csv", schema="k string, amount decimal(10,2)", rounding="half_up",
        ))  # fmt: skip
        def rows(scanned: Any) -> Any:
            return scanned

        dm.sink(rows, dm.DeltaAppend("rows"))

    ran = dm.testing.run_app(app, files)
    assert [str(row["amount"]) for row in ran.sink("rows")] == ["0.01", "1.25"]
    assert ran.quarantine() == []


def test_a_key_without_a_value_is_null(engine: SparkEngine) -> None:
    with dm.application("parsed"):
        parsed = dm.parse("texts", "text", format="key_value", schema="gift string, n bigint", on_bad="null")
    texts = engine.session.createDataFrame([("gift,n=3",), ("gift=x=y,n=4,gift",)], "text string")
    frames = OperatorContext(
        session=engine.session, params=dm.Params(), first_id=1, last_id=1, scanned_frames={}, streams={"texts": texts},
        read_state=lambda operator, partials: (partials, None), read_lookup=lambda operator: None,
        read_statement=lambda name: "",
    )  # fmt: skip
    output = parsed.operator.step(frames).output
    assert output is not None
    assert sorted(map(tuple, output.collect()), key=lambda row: row[1]) == [(None, 3), ("x=y", 4)]
