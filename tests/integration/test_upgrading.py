"""`drainmark plan` and `--drop-state`: the effect of new code on a region that ran, and a state that starts empty.

The rows are made without Spark. `test_upgraded_states.py` has what Spark's types tell of states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from followed import chains, follow
from hand_runs import engine, gives, without_spark
from harness import run_once, starts_of_spark, write

import drainmark as dm
from drainmark.jobs.errors import ForeignTable, StateIncompatible, StatesMoved, UnknownName, UsageError
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.cli.plan import _outcome
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import drive
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.plan import UpgradePlan, carry_out, drop_states, plan_upgrade
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.declaration import find_region
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.checkpoints.as_of import read_at

__all__ = ["engine", "without_spark"]

REGION = "growing/lines"


@gives("k string, total bigint")
def of_totals(totals: Any) -> Any:
    return [{"k": row["k"], "total": row["total"]} for row in totals]


def declare(
    inbox: Path,
    *values: str,
    keys: Sequence[str] = ("k",),
    sink: str = "append",
    factor: int = 1,
    extra: bool = False,
    more_extra: bool = False,
) -> Opened:
    """Return an application with totals of a column by key, behind a function; `values` adds columns to them."""
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def shaped(lines: Any) -> Any:
            return [{"k": row["k"], "n": row["n"] * factor} for row in lines]

        more = {name: dm.max("n") for name in values}
        totals = dm.aggregate(shaped, keys=keys, values={"total": dm.sum("n"), **more}, name="totals")
        seen = dm.functor(of_totals, name="seen", inputs=[totals])
        if sink == "append":
            dm.sink(seen, dm.DeltaAppend("seen"))
        elif sink == "shared":
            dm.sink(totals, dm.DeltaUpsert("shown", ["k"]))
        if extra:
            counts = {"count": dm.count(), **({"most": dm.max("n")} if more_extra else {})}
            dm.aggregate(shaped, keys=["k"], values=counts, name="extra")
    return open_application(dm.build_application(declared))


def planned(workplace: Workplace, opened: Opened, *drop: str) -> UpgradePlan:
    return plan_upgrade(workplace, opened, opened.plan.regions, drop=drop)


def shown(plan: UpgradePlan, part: str) -> dict[str, tuple[Any, ...]]:
    (region,) = plan.to_json()["regions"]
    keys = {"operators": ("operator", "change", "state"), "tables": ("table", "change")}[part]
    return {entry[keys[0]]: tuple(str(entry[key]) for key in keys[1:]) for entry in region[part]}


def seen(workplace: Workplace) -> list[tuple[int, str, int]]:
    rows = workplace.store(REGION).table("lake/seen").read().to_pylist()
    return sorted((row["_sequence_id"], row["k"], row["total"]) for row in rows)


def rewind(workplace: Workplace, to: int) -> None:
    reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=to)))


KEPT = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="INBOX", format="csv", schema="k string, n bigint", settle=0))
def lines(scanned):
    return scanned


dm.sink(dm.aggregate(lines, keys=["k"], values={"count": dm.count()}, name="counts"), dm.DeltaUpsert("counts", ["k"]))
"""


@pytest.mark.seed("NU5")
def test_a_plan_of_what_ran_as_it_is_needs_no_spark(workplace: Workplace, inbox: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.py"
    file.write_text(KEPT.replace("INBOX", str(inbox)))
    opened = open_application(str(file))
    write(inbox, "a,1\n")
    run_once(workplace, opened)
    without = Workplace(workplace.settings)
    starts = starts_of_spark(without)
    found = plan_upgrade(without, opened, opened.plan.regions)
    assert starts == []
    file.write_text(f"{file.read_text()}\n# other code, as far as its digest tells\n")
    assert plan_upgrade(workplace, opened, opened.plan.regions).to_json() == found.to_json()


def test_a_plan_tells_what_is_new_kept_changed_and_dropped(workplace: Workplace, inbox: Path) -> None:
    first = declare(inbox)
    assert set(shown(planned(workplace, first), "operators").values()) == {("new", "None"), ("new", "new")}
    assert not workplace.store(REGION).checkpoint.exists()
    write(inbox, "a,1\n")
    run_once(workplace, first)
    same = planned(workplace, declare(inbox))
    assert same.is_compatible
    assert shown(same, "operators")["totals"] == ("kept", "goes on")
    assert {change for (change,) in shown(same, "tables").values()} == {"kept"}
    other = planned(workplace, declare(inbox, sink="none", factor=2, extra=True))
    assert other.is_compatible
    assert shown(other, "operators") == {
        "lines": ("kept", "None"),
        "shaped": ("changed", "None"),
        "totals": ("kept", "goes on"),
        "extra": ("new", "new"),
        "seen": ("kept", "None"),
        "seen_sink": ("dropped", "None"),
    }
    assert shown(other, "tables")["lake/seen"] == ("dropped",)
    assert shown(other, "tables")["state/growing/extra"] == ("new",)


def test_code_that_cannot_go_on_from_a_state_is_refused_before_anything_changes(
    workplace: Workplace, inbox: Path
) -> None:
    write(inbox, "a,1\n")
    run_once(workplace, declare(inbox))
    epoch = workplace.history(REGION).epoch
    wider = declare(inbox, "most")
    plan = planned(workplace, wider)
    assert not plan.is_compatible
    assert shown(plan, "operators")["totals"] == ("changed", "incompatible")
    with pytest.raises(StateIncompatible) as refused:
        run_once(workplace, wider)
    assert refused.value.operator == "totals"
    assert "--drop-state totals" in (refused.value.remedy or "")
    assert "most" in refused.value.message
    assert workplace.history(REGION).epoch == epoch


def test_a_dropped_state_begins_anew_and_a_rewind_returns_to_the_old_one(workplace: Workplace, inbox: Path) -> None:
    narrow, wide = declare(inbox), declare(inbox, "most")
    write(inbox, "a,1\n", "a,10\n")
    run_once(workplace, narrow)
    assert planned(workplace, wide, "totals").is_compatible
    assert shown(planned(workplace, wide, "totals"), "operators")["totals"] == ("changed", "begins anew")
    drop_states(workplace, wide, wide.plan.regions, ["totals"])
    assert planned(workplace, wide).is_compatible
    write(inbox, "a,100\n", "a,1000\n")
    run_once(workplace, wide, max_group=1)
    assert seen(workplace) == [(1, "a", 1), (2, "a", 11), (3, "a", 100), (4, "a", 1100)]

    rewind(workplace, 3)  # after the drop: the state at that id is the new one
    run_once(workplace, wide, scan=False)
    assert seen(workplace)[-1][1:] == ("a", 1100)

    rewind(workplace, 1)  # before the drop: the old state, at 1
    with pytest.raises(StateIncompatible):
        run_once(workplace, wide, scan=False)
    run_once(workplace, narrow, scan=False)
    assert [row[1:] for row in seen(workplace)] == [("a", 1), ("a", 11), ("a", 111), ("a", 1111)]


def test_the_tables_that_are_shown_are_the_ones_that_are_made(workplace: Workplace, inbox: Path) -> None:
    code = declare(inbox)
    write(inbox, "a,1\n")
    run_once(workplace, code)
    plan = planned(workplace, code, "totals")
    carry_out(plan.drops)
    (region,) = plan.regions
    assert {table.table for table in region.tables} == {table.name for table in workplace.history(REGION).tables}


@pytest.mark.slow
def test_a_state_can_be_dropped_twice_and_again_after_a_rewind(workplace: Workplace, inbox: Path) -> None:
    code = declare(inbox)
    write(inbox, "a,1\n")
    run_once(workplace, code)
    for _ in range(2):
        drop_states(workplace, code, code.plan.regions, ["totals"])
    write(inbox, "a,10\n")
    run_once(workplace, code)
    assert seen(workplace) == [(1, "a", 1), (2, "a", 10)]
    rewind(workplace, 1)
    drop_states(workplace, code, code.plan.regions, ["totals"])
    run_once(workplace, code, scan=False)
    assert [row[1:] for row in seen(workplace)] == [("a", 1), ("a", 10)]


@pytest.mark.parametrize(
    ("point", "total"), [pytest.param("claim.before_commit", 11, marks=pytest.mark.slow), ("claim.after_commit", 10)]
)
def test_a_state_is_dropped_with_the_claims_commit_or_not_at_all(
    workplace: Workplace, inbox: Path, point: str, total: int
) -> None:
    """If the reply to a commit was lost, the commit is found to have landed."""
    code = declare(inbox)
    write(inbox, "a,1\n")
    run_once(workplace, code)
    arm(f"{point}:raise")
    try:
        with suppress(InjectedFailure):
            drop_states(workplace, code, code.plan.regions, ["totals"])
    finally:
        arm("")
    write(inbox, "a,10\n")
    run_once(workplace, code)
    assert seen(workplace)[-1][2] == total


def test_a_run_whose_code_was_read_before_a_drop_does_not_claim(workplace: Workplace, inbox: Path) -> None:
    code = declare(inbox)
    write(inbox, "a,1\n")
    run_once(workplace, code)
    late = region_run(workplace, code, code.region())
    drop_states(workplace, code, code.plan.regions, ["totals"])
    epoch = workplace.history(REGION).epoch
    with pytest.raises(StatesMoved):
        drive(late)
    assert workplace.history(REGION).epoch == epoch
    again = region_run(workplace, code, code.region(), blueprint=late.blueprint)
    assert again.blueprint.tables != late.blueprint.tables
    drive(again)


@pytest.mark.slow
def test_what_keeps_no_state_or_is_shown_by_a_table_is_not_dropped(workplace: Workplace, inbox: Path) -> None:
    code = declare(inbox, sink="shared")
    write(inbox, "a,1\n")
    run_once(workplace, code)
    for name, error in (("total", UnknownName), ("shaped", UsageError), ("totals", StateIncompatible)):
        with pytest.raises(error):
            drop_states(workplace, code, code.plan.regions, [name])
    rewind(workplace, 0)
    drop_states(workplace, code, code.plan.regions, ["totals"])  # an empty table has no rows of the old state
    run_once(workplace, code, scan=False)
    rows = workplace.store(REGION).table("lake/shown").read().to_pylist()
    assert [(row["k"], row["total"]) for row in rows] == [("a", 1)]


def declare_newest(inbox: Path, *keys: str) -> Opened:
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(lines, dm.DeltaUpsert("newest", keys))
    return open_application(dm.build_application(declared))


@pytest.mark.seed("H4")
def test_the_rows_of_an_upsert_sink_do_not_change_their_keys(workplace: Workplace, inbox: Path) -> None:
    """Rows of one new key would stay in the table together, and a rewind would restore only one of them."""
    write(inbox, "a,1\na,2\n")
    run_once(workplace, declare_newest(inbox, "k", "n"))
    other = declare_newest(inbox, "k")
    plan = planned(workplace, other)
    assert not plan.is_compatible
    assert shown(plan, "tables")["lake/newest"] == ("incompatible",)
    with pytest.raises(StateIncompatible, match=r"lake/newest has rows by keys k, n, and would go on by keys k \["):
        run_once(workplace, other)
    rewind(workplace, 0)
    assert planned(workplace, other).is_compatible
    run_once(workplace, other, scan=False)
    rows = workplace.store(REGION).table("lake/newest").read().to_pylist()
    assert [(row["k"], row["n"]) for row in rows] == [("a", 2)]


APP = """\
from __future__ import annotations

import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k string, n bigint", settle=0))
def lines(scanned):
    return scanned

totals = dm.aggregate(lines, keys=["k"], values={"total": dm.sum("n")}, name="totals")

@dm.functor
def seen(totals) -> "k string, total bigint":
    return [{"k": row["k"], "total": row["total"]} for row in totals]

dm.sink(seen, dm.DeltaAppend("seen"))
"""


def test_a_drop_that_does_not_make_the_plan_compatible_is_not_to_be_repeated(workplace: Workplace, inbox: Path) -> None:
    """Another state with an incompatible table must be settled first."""
    write(inbox, "a,1\n")
    run_once(workplace, declare(inbox, extra=True))
    other = declare(inbox, "most", extra=True, more_extra=True)
    found = planned(workplace, other, "totals")
    assert not found.is_compatible
    said = _outcome(found, is_done=False)
    assert "--yes" not in said
    assert "above" in said
    assert "--yes" in _outcome(planned(workplace, other, "totals", "extra"), is_done=False)


@pytest.mark.slow
def test_the_verb_shows_and_drops(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drainmark.toml").touch()
    (tmp_path / "inbox").mkdir()
    app = tmp_path / "app.py"
    app.write_text(APP)
    write(tmp_path / "inbox", "a,1\n")
    assert invoke(["run", "app.py"]) == 0
    assert invoke(["plan", "app.py"]) == 0
    app.write_text(APP.replace('dm.sum("n")', 'dm.sum("n"), "most": dm.max("n")'))
    write(tmp_path / "inbox", "a,10\n")
    capsys.readouterr()
    assert invoke(["plan", "app.py", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_compatible"] is False
    assert invoke(["plan", "app.py"]) == 1
    assert "plan app.py --drop-state totals" in capsys.readouterr().out
    assert invoke(["run", "app.py"]) == 1
    assert "--drop-state totals" in capsys.readouterr().err
    capsys.readouterr()
    assert invoke(["plan", "app.py", "--drop-state", "totals"]) == 0
    assert "repeat it with --yes" in capsys.readouterr().out
    assert invoke(["plan", "app.py"]) == 1
    assert invoke(["run", "app.py", "--drop-state", "totals", "--json"]) == 0
    assert invoke(["plan", "app.py", "--drop-state", "nothing"]) == 2
    capsys.readouterr()
    assert invoke(["show", "seen", "--json"]) == 0
    assert [row["total"] for row in json.loads(capsys.readouterr().out)] == [1, 10]


MORE = (
    APP
    + """
extra = dm.aggregate(lines, keys=["k"], values={"count": dm.count()}, name="extra")
SINK
"""
)
SHOWN = 'dm.sink(extra, dm.DeltaUpsert("shown", ["k"], on_schema_change="evolve"))'


@pytest.fixture
def two_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that runs an application with two states, and then gives both other columns."""

    def changed(sink: str) -> Path:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "drainmark.toml").write_text('applications = ["app.py"]\n')
        (tmp_path / "inbox").mkdir()
        code = MORE.replace("SINK", sink)
        (tmp_path / "app.py").write_text(code)
        write(tmp_path / "inbox", "a,1\n")
        assert invoke(["run", "app.py"]) == 0
        wider = code.replace('dm.sum("n")', 'dm.sum("n"), "most": dm.max("n")')
        (tmp_path / "app.py").write_text(wider.replace("dm.count()", 'dm.count(), "least": dm.min("n")'))
        write(tmp_path / "inbox", "a,10\n")
        return tmp_path / ".drainmark"

    return changed


def totals_seen(home: Path) -> list[int]:
    return sorted(row["total"] for row in read_at("app", "seen", home=str(home)).to_pylist())


def test_states_that_cannot_go_on_begin_anew_by_what_the_run_says(
    two_states: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The drop of one of them alone is refused because of the other; the table that shows one is emptied first."""
    home = two_states(SHOWN)
    capsys.readouterr()
    assert invoke(["run", "app.py"]) == 1
    said = capsys.readouterr().err
    follow(said, "reset", home)
    follow(said, "run", home)
    assert totals_seen(home) == [1, 11]
    (row,) = read_at("app", "shown", home=str(home)).to_pylist()
    assert (row["count"], row["least"]) == (2, 1)


def test_states_that_cannot_go_on_begin_anew_by_what_the_plan_says(
    two_states: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home = two_states(SHOWN)
    capsys.readouterr()
    assert invoke(["plan", "app.py"]) == 1
    said = capsys.readouterr().out
    words = next(command for chain in chains(said) for command in chain if "--drop-state" in command)
    assert invoke(words) == 1, "the table that shows one of them has rows"
    follow(said, "reset", home)
    assert invoke([*words, "--yes"]) == 0
    assert invoke(["run", "app.py"]) == 0
    assert totals_seen(home) == [1, 11]


def test_a_renamed_start_is_refused_by_the_plan_as_by_the_run_and_leaves_no_region(
    workplace: Workplace, inbox: Path, tmp_path: Path
) -> None:
    """The plan called the table of the other region new; the run made a region that no verb removed."""
    file = tmp_path / "kept.py"
    file.write_text(KEPT.replace("INBOX", str(inbox)))
    write(inbox, "a,1\n")
    run_once(workplace, open_application(str(file)))
    file.write_text(file.read_text().replace("lines", "rows"))
    renamed = open_application(str(file))
    with pytest.raises(ForeignTable, match="made by region kept/lines") as refused:
        plan_upgrade(workplace, renamed, renamed.plan.regions)
    assert "name the start lines" in (refused.value.remedy or "")
    assert invoke(["run", str(file), "--home", str(workplace.home)]) == ForeignTable.exit_code
    assert list(workplace.known_regions()) == ["kept/lines"]
    assert find_region(workplace, "kept") == "kept/lines"
