"""`@dm.custom` and control ports against plain Python: any grouping, states in files, rewinding (V21, V58, V94)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
import pytest
from harness import rows, run_once
from triggers import add_file, content, home, opened

import drainmark as dm
from drainmark import F
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

FILES = 6
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of the last visit."""

    n: int | None
    at: dt.datetime


@dataclasses.dataclass(frozen=True)
class Seen:
    """The state of a user, with every kind of field that a column can hold."""

    rows: int
    newest: list[int]
    by_number: dict[int, float]
    last: Place
    note: str = "new"


def visits(state: Seen | None, events: pd.DataFrame) -> tuple[Seen | None, pd.DataFrame]:
    """Count a user's rows; a user is forgotten after four of them."""
    numbers = [None if pd.isna(n) else int(n) for n in events["n"]]
    by_number = dict(state.by_number) if state else {}
    for n, x in zip(numbers, events["x"], strict=True):
        by_number[-1 if n is None else n] = x
    seen = Seen(
        rows=(state.rows if state else 0) + len(events),
        newest=[*(state.newest if state else []), *(n for n in numbers if n is not None)][-3:],
        by_number=by_number,
        last=Place(n=numbers[-1], at=events["at"].iloc[-1].to_pydatetime()),
        note="known" if state else "new",
    )
    out = pd.DataFrame({
        "user": events["user"], "place": range(1, len(events) + 1), "rows": seen.rows, "sum": sum(seen.newest),
        "note": seen.note, "numbers": len(seen.by_number),
    })  # fmt: skip
    return (None if seen.rows >= 4 else seen), out


OUTPUT = "user string, place bigint, rows bigint, sum bigint, note string, numbers bigint"


def expected(files: list[int]) -> list[Row]:
    """Return the rows of the sink after these files: the author's function, called in plain Python."""
    states: dict[Any, Seen | None] = defaultdict(lambda: None)
    found: list[Row] = []
    for number in files:
        by_user: dict[Any, list[Row]] = defaultdict(list)
        for row in content(number):
            by_user[row["user"]].append(row)
        for user, mine in by_user.items():
            states[user], out = visits(states[user], pd.DataFrame(mine))
            found.extend(out.to_dict("records"))
    return found


def plain(found: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in found)


def declare(events: Any) -> None:
    kept = dm.custom(visits, keys=["user"], state=Seen, output=OUTPUT, inputs=[events])
    dm.sink(kept, dm.DeltaAppend("visits_out"))


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    for number in range(FILES):
        add_file(tmp_path / "inbox", number)
    return tmp_path / "inbox"


@dataclasses.dataclass(frozen=True)
class Way:
    """Sizes: files in a group; bytes up to which the state is in memory, and up to which groups come back by Arrow."""

    size: int
    state_bytes: int
    group_bytes: int
    checkpoints: str


@pytest.mark.seed("V151")
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(Way(1, keyed_state.MEMORY_STATE_BYTES, 8 << 20, "non-blocking"), marks=pytest.mark.slow),
        pytest.param(Way(4, keyed_state.MEMORY_STATE_BYTES, 0, "non-blocking"), marks=pytest.mark.slow),
        Way(2, 0, 8 << 20, "non-blocking"),
        pytest.param(Way(6, 0, 0, "blocking"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_custom_state_is_the_same_whatever_the_grouping_and_can_be_rewound(
    tmp_path: Path,
    inbox: Path,
    engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
    way: Way,
) -> None:
    """The state is in memory or in files, groups come back by Arrow or are written by Spark; a key can be forgotten."""
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", way.state_bytes)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
    application = opened("visits", inbox, declare, checkpoints=way.checkpoints)
    with home(tmp_path / "home", engine, small_group_bytes=way.group_bytes) as place:
        run_once(place, application, max_group=way.size)
        found = rows(place, "visits/events", "visits_out", ids=False)
        assert plain(found) == plain(expected(list(range(FILES))))
        assert any(row["rows"] >= 4 for row in found), "no key was ever forgotten"
        to = 3
        rewind(place, "visits/events", to, 10_000)
        assert plain(rows(place, "visits/events", "visits_out", ids=False)) == plain(expected(list(range(to))))
        run_once(place, application, max_group=FILES - way.size + 1)
        assert plain(rows(place, "visits/events", "visits_out", ids=False)) == plain(expected(list(range(FILES))))


def test_new_fields_of_a_state_take_their_defaults_in_old_rows(
    tmp_path: Path, inbox: Path, engine: SparkEngine
) -> None:
    """V58: today's code reads the state that yesterday's code wrote."""

    @dataclasses.dataclass(frozen=True)
    class Before:
        rows: int

    @dataclasses.dataclass(frozen=True)
    class After:
        rows: int
        bonus: int = 100

    def before(state: Any, events: pd.DataFrame) -> Any:
        return Before(rows=(state.rows if state else 0) + len(events)), None

    def after(state: Any, events: pd.DataFrame) -> Any:
        new = After(rows=(state.rows if state else 0) + len(events), bonus=state.bonus if state else 1)
        return new, pd.DataFrame({"rows": [new.rows], "bonus": [new.bonus]})

    def version(function: Any, state: type) -> Any:
        def declared(events: Any) -> None:
            kept = dm.custom(
                function, keys=[], state=state, output="rows bigint, bonus bigint", inputs=[events], name="kept"
            )
            dm.sink(kept, dm.DeltaAppend("kept_out"))

        return declared

    names = sorted(inbox.iterdir())
    with home(tmp_path / "home", engine) as place:
        later = [path.rename(tmp_path / path.name) for path in names[3:]]
        run_once(place, opened("evolving", inbox, version(before, Before)))
        for path in later:
            path.rename(inbox / path.name)
        run_once(place, opened("evolving", inbox, version(after, After)))
        counts = list(itertools.accumulate(len(content(number)) for number in range(FILES)))
        found = rows(place, "evolving/events", "kept_out", ids=False)
        assert sorted(row["rows"] for row in found) == [counts[i] for i in range(3, FILES) if content(i)]
        assert {row["bonus"] for row in found} == {100}


def test_arrow_tables_in_and_out_keep_their_types(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    @dataclasses.dataclass(frozen=True)
    class Total:
        n: int = 0

    def total(state: Any, events: pa.Table) -> Any:
        assert events.schema.field("n").type == pa.int64(), events.schema
        new = Total(n=(state or Total()).n + sum(n or 0 for n in events["n"].to_pylist()))
        return new, pa.table({"user": events["user"][:1], "n": pa.array([new.n])})

    def declared(events: Any) -> None:
        kept = dm.custom(
            total, keys=["user"], state=Total, output="user string, n bigint", inputs=[events], batch="arrow"
        )
        dm.sink(kept, dm.DeltaUpsert("totals", keys=["user"]))

    with home(tmp_path / "home", engine) as place:
        run_once(place, opened("arrow", inbox, declared))
        wanted: dict[Any, int] = defaultdict(int)
        for row in itertools.chain.from_iterable(map(content, range(FILES))):
            wanted[row["user"]] += row["n"] or 0
        found = {row["user"]: row["n"] for row in rows(place, "arrow/events", "totals", ids=False)}
        assert found == wanted


def test_the_keys_that_select_the_state_are_those_of_the_rows(engine: SparkEngine) -> None:
    """A function draws the keys; keys drawn a second time would have no state."""

    @dataclasses.dataclass(frozen=True)
    class Total:
        n: int

    def total(state: Any, rows: pa.Table) -> Any:
        return state, pa.table({"n": pa.array([state.n if state else 0])})

    with dm.application("drawn"):
        kept = dm.custom(total, keys=["user"], state=Total, output="n bigint", inputs=["rows"], batch="arrow")
    drawn = F.udf(lambda: uuid.uuid4().hex).asNondeterministic()
    rows = engine.session.range(3).select(drawn().alias("user"), F.lit(1).cast("bigint").alias(SEQUENCE_ID))

    def state_of(operator: Any, part: str, changed: Any, *asked: Any) -> Any:
        return changed.selectExpr("user", "7L as n", f"0L as {SEQUENCE_ID}").localCheckpoint()

    frames = OperatorContext(
        session=engine.session, params=dm.Params(), first_id=1, last_id=1, scanned_frames={}, streams={"rows": rows},
        read_state=lambda operator, partials: (partials, None), read_lookup=lambda operator: None,
        read_statement=lambda name: "", read_kept=state_of, materialise=lambda operator, frame: frame.localCheckpoint(),
    )  # fmt: skip
    output = kept.operator.step(frames).output
    assert output is not None
    assert [row.n for row in output.collect()] == [7, 7, 7]


def fed_back(events: Any) -> None:
    """Declare a loop closed on a control port (V21): users with too many rows are no longer let through."""

    def allowed(
        events: Any, banned: Annotated[Any, dm.Control(keys=["user"], schema="user string, rows bigint")]
    ) -> Any:
        return events.join(banned.select(F.col("user").alias("b")), F.expr("user <=> b"), "left_anti")

    def too_many(counted: Any) -> Any:
        return F.col("rows") >= 5

    kept = dm.functor(allowed, inputs=[events, "banned"])
    counted = dm.aggregate(kept, keys=["user"], values={"rows": dm.count()}, name="counted")
    dm.filter(too_many, inputs=[counted], name="banned")
    dm.sink(kept, dm.DeltaAppend("let_through"))


def let_through(files: list[int]) -> list[int]:
    """Return the number of rows of each file that pass."""
    counts: dict[Any, int] = defaultdict(int)
    passed = []
    for number in files:
        banned = {user for user, count in counts.items() if count >= 5}
        mine = [row["user"] for row in content(number) if row["user"] not in banned]
        for user in mine:
            counts[user] += 1
        passed.append(len(mine))
    return passed


@pytest.mark.slow
@pytest.mark.seed("V92")
@pytest.mark.parametrize("checkpoints", ["blocking", "non-blocking"])
def test_a_loop_closed_on_a_control_port_acts_from_the_next_id_on(
    tmp_path: Path, inbox: Path, engine: SparkEngine, checkpoints: str
) -> None:
    for number in range(FILES, 8):
        add_file(inbox, number)
    files = list(range(8))
    application = opened("looped", inbox, fed_back, checkpoints=checkpoints)
    with home(tmp_path / "home", engine) as place:
        reports = run_once(place, application, max_group=4)
        assert {report.triggers for report in reports} == {1}, "the rows of an id depend on the id before"
        found = [row["_sequence_id"] for row in rows(place, "looped/events", "let_through")]
        assert [found.count(number + 1) for number in files] == let_through(files)
        assert sum(let_through(files)) < sum(len(content(number)) for number in files), "nobody was ever banned"
        rewind(place, "looped/events", 5, 10_000)
        run_once(place, application)
        assert len(rows(place, "looped/events", "let_through")) == sum(let_through(files))
