"""What states go on with, and what they do not: their retention, values and keys, as Spark's types tell."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import run_once
from integration.test_upgrading import REGION, planned, rewind, seen, shown, write

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import StateIncompatible
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.verbs.plan import drop_states
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application

pytestmark = pytest.mark.spark

HOUR = dt.timedelta(hours=1)


KEPT = """
import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="INBOX", format="csv", schema="k string, n bigint", settle=0))
def lines(scanned):
    return scanned


@dm.functor
def shaped(lines):
    return dm.select(lines, "k", "COLUMN")


dm.sink(dm.aggregate(shaped, keys=["k"], values={"count": dm.count()}, name="counts"), dm.DeltaUpsert("counts", ["k"]))
"""


@pytest.mark.seed("NU6")
def test_graph_finds_a_wrong_column_where_it_is_asked_to_analyse(
    workplace: Workplace, inbox: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workplace.engine.session is not None  # the command line's own engine finds this session
    file, home = tmp_path / "kept.py", str(workplace.home)
    file.write_text(KEPT.replace("INBOX", str(inbox)).replace("COLUMN", "amount"))
    assert invoke(["graph", str(file), "--home", home]) == 0
    capsys.readouterr()
    assert invoke(["graph", str(file), "--analyse", "--home", home]) == 1
    told = capsys.readouterr().err
    assert "amount" in told
    assert f"{file}:12" in told
    assert not list(workplace.home.glob("checkpoints/*"))
    file.write_text(file.read_text().replace("amount", "n"))
    assert invoke(["graph", str(file), "--analyse", "--home", home]) == 0


def declare_window(inbox: Path, rows: int) -> Opened:
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        window = dm.sliding(rows=rows)
        values = {"total": dm.sum("n")}
        dm.sink(
            dm.aggregate(lines, keys=["k"], values=values, window=window, emit="row", name="totals"),
            dm.DeltaAppend("seen"),
        )
    return open_application(dm.build_application(declared))


@pytest.mark.slow
@pytest.mark.seed("V154")
def test_a_window_may_slide_over_fewer_rows_and_not_over_more(workplace: Workplace, inbox: Path) -> None:
    """The rows that a longer window needs were never kept; those of a shorter window were (`Retention`)."""
    write(inbox, "a,1\n", "a,10\n", "a,100\n")
    run_once(workplace, declare_window(inbox, 2))
    longer = declare_window(inbox, 3)
    plan = planned(workplace, longer)
    assert not plan.is_compatible
    assert shown(plan, "operators")["totals"] == ("changed", "incompatible")
    with pytest.raises(StateIncompatible) as refused:
        run_once(workplace, longer)
    assert "keeps 2 rows of a key, and 3 are asked for" in refused.value.message
    assert planned(workplace, longer, "totals").is_compatible
    shorter = declare_window(inbox, 1)
    assert planned(workplace, shorter).is_compatible
    write(inbox, "a,1000\n")
    run_once(workplace, shorter)
    assert seen(workplace) == [(1, "a", 1), (2, "a", 11), (3, "a", 110), (4, "a", 1000)]
    assert not planned(workplace, declare_window(inbox, 2)).is_compatible


def declare_within(inbox: Path, ids: int) -> Opened:
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.deduplicate(lines, keys=["k"], within=ids, name="firsts"), dm.DeltaAppend("seen"))
    return open_application(dm.build_application(declared))


@pytest.mark.slow
@pytest.mark.seed("V154")
def test_what_a_shorter_while_needs_no_more_leaves_the_state(workplace: Workplace, inbox: Path) -> None:
    """Its time was over before the first trigger that the new code sees. That trigger removes it, else none would."""
    write(inbox, "a,1\n", "b,1\n")
    run_once(workplace, declare_within(inbox, 9))
    shorter = declare_within(inbox, 0)
    assert planned(workplace, shorter).is_compatible
    write(inbox, "c,1\n", "d,1\n")
    run_once(workplace, shorter)
    changes = workplace.store(REGION).table("state/growing/firsts").read().to_pylist()
    gone = sorted((row["k"], row["_sequence_id"]) for row in changes if row["_gone"])
    assert gone == [("a", 3), ("b", 3), ("c", 4)]


def declare_value(inbox: Path, value: Any) -> Opened:
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint, m bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        totals = dm.aggregate(lines, keys=["k"], values={"total": value}, name="totals")
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
    return open_application(dm.build_application(declared))


@pytest.mark.seed("RT3")
def test_a_state_does_not_go_on_as_another_value(workplace: Workplace, inbox: Path) -> None:
    """Same name, same type: a sum would be compared with numbers, and nobody would notice."""

    def own(top: bool) -> Any:
        made = F.max if top else F.min
        return dm.Aggregation(partial=lambda: made("n"), merge=made)

    write(inbox, "a,5,1000\na,7,1000\n")
    run_once(workplace, declare_value(inbox, dm.sum("n")))
    for other, why in ((dm.max("n"), "total is max(n), was sum(n)"), (dm.sum("m"), "total is sum(m), was sum(n)")):
        plan = planned(workplace, declare_value(inbox, other))
        assert shown(plan, "operators")["totals"] == ("changed", "incompatible")
        assert [table.why for table in plan.regions[0].tables if table.why] == [why]
        with pytest.raises(StateIncompatible) as refused:
            run_once(workplace, declare_value(inbox, other))
        assert why in refused.value.message
    assert workplace.history(REGION).committed_id == 1
    rewind(workplace, 0)
    code = declare_value(inbox, own(top=True))
    drop_states(workplace, code, code.plan.regions, ["totals"])
    run_once(workplace, code, scan=False)
    plan = planned(workplace, declare_value(inbox, own(top=False)))
    assert shown(plan, "operators")["totals"] == ("changed", "incompatible")
    assert planned(workplace, declare_value(inbox, own(top=True))).is_compatible


def declare_firsts(inbox: Path, event_time: str = "sold_at", within: Any = HOUR) -> Opened:
    """Return the first sale of each key within a time; the hour of `sold_at` is shown with it."""
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(
                path=str(inbox), format="csv", schema="k string, sold_at timestamp, paid_at timestamp", settle=0
            )
        )
        def lines(scanned: Any) -> Any:
            return scanned

        by_time = {"event_time": event_time} if isinstance(within, dt.timedelta) else {}
        firsts = dm.deduplicate(lines, keys=["k"], within=within, name="firsts", **by_time)
        hours = dm.functor(
            lambda firsts: dm.select(firsts, "k", F.hour("sold_at").cast("bigint").alias("total")),
            name="hours", inputs=[firsts],
        )  # fmt: skip
        dm.sink(hours, dm.DeltaAppend("seen"))
    return open_application(dm.build_application(declared))


def sales(*hours: int) -> str:
    return "".join(f"a,2026-03-01T{hour:02d}:00:00Z,2026-03-02T{hour:02d}:00:00Z\n" for hour in hours)


@pytest.mark.slow
@pytest.mark.seed("RT3")
def test_a_deduplication_goes_on_with_a_shorter_while_of_its_own_clock_alone(workplace: Workplace, inbox: Path) -> None:
    """A longer time needs keys that were forgotten; another clock does not know when the others passed."""
    write(inbox, sales(1), sales(3))
    run_once(workplace, declare_firsts(inbox))
    refused = {
        "seconds of `paid_at`, was for seconds of `sold_at`": declare_firsts(inbox, "paid_at"),
        "keeps 3600 seconds of `sold_at`, and 7200 are asked for": declare_firsts(inbox, within=2 * HOUR),
        "for triggers, was for seconds of `sold_at`": declare_firsts(inbox, within=9),
        "_at is gone": declare_firsts(inbox, within=None),
    }
    write(inbox, sales(3, 4))
    for why, other in refused.items():
        plan = planned(workplace, other)
        assert shown(plan, "operators")["firsts"] == ("changed", "incompatible")
        assert any(why in table.why for table in plan.regions[0].tables), why
    longer = refused["keeps 3600 seconds of `sold_at`, and 7200 are asked for"]
    with pytest.raises(StateIncompatible, match="7200 are asked for"):
        run_once(workplace, longer)
    assert seen(workplace) == [(1, "a", 1), (2, "a", 3)]
    shorter = declare_firsts(inbox, within=HOUR / 2)
    assert shown(planned(workplace, shorter), "operators")["firsts"] == ("changed", "goes on")
    run_once(workplace, shorter)
    assert seen(workplace) == [(1, "a", 1), (2, "a", 3), (3, "a", 4)]
    rewind(workplace, 1)
    drop_states(workplace, longer, longer.plan.regions, ["firsts"])
    run_once(workplace, longer)
    assert [total for _, _, total in seen(workplace)] == [1, 3], "nothing is known of 1 o'clock; 4 follows 3 too soon"


@dataclass
class Total:
    sum: int


@dataclass
class WiderTotal:
    sum: int
    rows: int = 0


@dataclass
class TextTotal:
    sum: str


def declare_custom(inbox: Path, state: type = Total, *, keys: Sequence[str] = ("k",), factor: int = 1) -> Opened:
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        def added(before: Any, rows: Any) -> Any:
            n = (int(before.sum) if before else 0) + factor * sum(rows["n"].to_pylist())
            return state(type_of_n(n)), pa.table({"k": rows["k"][:1], "total": pa.array([n], pa.int64())})

        type_of_n = str if state is TextTotal else int
        totals = dm.custom(
            added, keys=keys, state=state, output="k string, total bigint", batch="arrow", name="totals", inputs=[lines]
        )
        dm.sink(totals, dm.DeltaAppend("seen"))
    return open_application(dm.build_application(declared))


@pytest.mark.slow
@pytest.mark.seed("RT3")
def test_a_custom_state_goes_on_with_other_code_and_further_fields_alone(workplace: Workplace, inbox: Path) -> None:
    write(inbox, "a,1\n")
    run_once(workplace, declare_custom(inbox))
    write(inbox, "a,1\n")
    for why, other in (
        ("keys are k, n, were k", declare_custom(inbox, keys=("k", "n"))),
        ("sum is string, was long", declare_custom(inbox, TextTotal)),
    ):
        assert shown(planned(workplace, other), "operators")["totals"] == ("changed", "incompatible")
        with pytest.raises(StateIncompatible) as caught:
            run_once(workplace, other)
        assert why in caught.value.message
    mended, wider = declare_custom(inbox, factor=10), declare_custom(inbox, WiderTotal, factor=100)
    assert shown(planned(workplace, mended), "operators")["totals"] == ("changed", "goes on")
    run_once(workplace, mended)
    assert shown(planned(workplace, wider), "operators")["totals"] == ("changed", "widened")
    write(inbox, "a,1\n")
    run_once(workplace, wider)
    assert seen(workplace) == [(1, "a", 1), (2, "a", 11), (3, "a", 111)]
    assert "rows is gone" in {table.why for table in planned(workplace, mended).regions[0].tables}
    rewind(workplace, 1)
    run_once(workplace, wider)
    assert [total for _, _, total in seen(workplace)] == [1, 101, 201]
