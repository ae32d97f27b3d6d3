"""`run_app` and its result, with the real runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import drainmark as dm
import drainmark.jobs.apps.word_count
from drainmark import F
from drainmark.jobs.errors import NotRowWise, OperatorFailed, RewindRefused, UnknownName, UsageError
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
FILES = {"a.txt": "to be or not to be\n", "b.txt": "to do\n", "c.txt": "be kind\n"}
TWO_REGIONS = Path(__file__).parents[1] / "recovery" / "apps" / "two_regions.py"
PARAMETERS = Path(__file__).parents[1] / "ordinary" / "parameters.py"


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["word"]: row["count"] for row in rows}


@pytest.mark.parametrize(
    "app",
    [
        pytest.param("word_count", marks=pytest.mark.slow),  # all other tests name it so
        drainmark.jobs.apps.word_count,
        pytest.param(Path(str(drainmark.jobs.apps.word_count.__file__)), marks=pytest.mark.slow),
    ],
)
def test_an_application_is_named_in_any_way(run_app: RunApp, app: str | Path | ModuleType) -> None:
    assert counts(run_app(app, {"a.txt": "to be\n"}).sink("word_counts")) == {"to": 1, "be": 1}


def test_a_result_is_looked_at_rewound_given_more_and_run_again(run_app: RunApp, drainmark_home: Path) -> None:
    result = run_app("word_count", FILES, max_group=2)
    assert result.home == drainmark_home
    assert [group.triggers for group in result.groups] == [2, 1]
    assert counts(result.sink("word_counts", at=1)) == {"to": 2, "be": 2, "or": 1, "not": 1}
    everything = result.sink("word_counts", ids=True)
    assert counts(everything) == {"to": 3, "be": 3, "or": 1, "not": 1, "do": 1, "kind": 1}
    assert {row["word"]: row["_sequence_id"] for row in everything}["be"] == 3
    assert result.state("words_by_word") == result.sink("word_counts")
    assert result.state("words_by_word", at=1) == result.sink("word_counts", at=1)
    assert [state["sequence_id"] for state in result.history] == [1, 2, 3]
    assert result.status["committed_sequence_id"] == 3
    assert list(result.pandas("word_counts")["word"]) == [row["word"] for row in everything]

    result.rewind(to="a.txt")
    assert result.status["pending_triggers"] == 2
    assert result.quarantine() == []
    assert counts(result.sink("word_counts")) == {"to": 2, "be": 2, "or": 1, "not": 1}
    result.add({"d.txt": "kind\n"}).run()
    assert counts(result.sink("word_counts")) == {**counts(everything), "kind": 2}
    with pytest.raises(RewindRefused):
        result.rewind(to=99)
    with pytest.raises(UnknownName):
        result.sink("word_count")
    with pytest.raises(UnknownName):
        result.state("words")


@pytest.mark.parametrize(
    "kinds", [("csv", "parquet"), pytest.param(("csv", "json", "parquet"), marks=pytest.mark.slow)], ids=len
)
def test_rows_go_to_several_sources_and_lookups_and_are_read_as_they_were_given(
    run_app: RunApp, kinds: tuple[str, ...]
) -> None:
    def declare() -> None:
        for kind in kinds:
            scan = dm.DirectoryScan(path="x", format=kind, schema="user string, n bigint")
            stream = dm.source(scan)(named(f"{kind}_rows", lambda scanned: scanned))
            dm.consistent(trigger="operator-driven")(stream)
            levels = dm.lookup("levels", name=f"{kind}_levels")
            joined = dm.functor(lambda rows, levels: rows.join(levels, "user", "left"), name=f"{kind}_joined",
                                inputs=[stream, levels])  # fmt: skip
            dm.sink(joined, dm.DeltaAppend(f"{kind}_out"))

    rows = [{"user": "ann", "n": 1}, {"user": 'b,"ob', "n": None}]
    files = {f"{kind}_rows": {f"1.{kind}": rows} for kind in kinds}
    result = run_app(declare, files, tables={"levels": [{"user": "ann", "level": 7}]})
    for kind in kinds:
        found = [(row["user"], row["n"], row["level"]) for row in result.sink(f"{kind}_out")]
        assert sorted(found, key=repr) == [("ann", 1, 7), ('b,"ob', None, None)], kind
    with pytest.raises(UsageError):
        _ = result.history


def named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


def test_params_and_one_region_of_two(run_app: RunApp) -> None:
    orders = [{"customer": "ann", "item": "tea", "amount": 3}, {"customer": "bob", "item": "Tea", "amount": -1}]
    result = run_app(TWO_REGIONS, {"orders": {"1.csv": orders}}, region="two_regions/orders")
    assert result.sink("two_customers") == [{"customer": "ann", "orders": 1, "amount": 3}]
    assert result.sink("two_item_changes") == [{"item": "TEA", "orders": 2, "amount": 2}]
    found = run_app(PARAMETERS, {"a.txt": "to be"}, params={"suffix": "!"})
    assert [row["asked"] for row in found.sink("asked")] == ["to be!"]


def test_a_function_that_mixes_files_is_found_out(run_app: RunApp) -> None:
    def mixing() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="in"))
        def lines(scanned: Any) -> Any:
            return scanned

        once = dm.functor(lambda lines: lines.dropDuplicates(["value"]), name="once", inputs=[lines], vectorised=True)
        dm.sink(once, dm.DeltaAppend("once"))

    with pytest.raises(NotRowWise):
        run_app(mixing, {"a": "x\n", "b": "x\n"})


@pytest.mark.parametrize("max_group", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_user_code_that_crashes_at_a_row_recovers(run_app: RunApp, tmp_path: Path, max_group: int) -> None:
    crash = dm.testing.crash_on(tmp_path / "crashed", where="value like 'to%'", nth=2)

    def crashing() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="in", pattern="*.txt"))
        def lines(scanned: Any) -> Any:
            return crash(scanned)

        counted = dm.aggregate(lines, keys=["value"], values={"count": dm.count()})
        dm.sink(counted, dm.DeltaUpsert("crashing", keys=["value"]))

    result = run_app(crashing, max_group=max_group).add(FILES)
    if max_group == 1:
        with pytest.raises(OperatorFailed, match="crash_on"):
            result.run()
        assert [row["value"] for row in result.sink("crashing")] == ["to be or not to be"]
        assert result.status["state"] == "UNHEALTHY"
    result.run()
    assert {row["value"]: row["count"] for row in result.sink("crashing")} == {
        "to be or not to be": 1, "to do": 1, "be kind": 1
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "crashed").iterdir()) == ["1", "2"], "it crashed, and only once"


def test_the_law_holds_for_what_ships_and_is_broken_by_what_does_not_merge() -> None:
    rows = [{"n": number * 7 % 5, "x": number / 3} for number in range(9)]
    rows[3]["n"] = None  # type: ignore[assignment]
    spread = dm.Aggregation(
        partial={"low": lambda: F.min("x"), "high": lambda: F.max("x")},
        merge={"low": F.min, "high": F.max},
        finish=lambda parts: parts["high"] - parts["low"],
        label="spread",
    )
    for kept in (dm.first("n"), spread):
        dm.testing.assert_aggregation_laws(kept, rows)
    broken = dm.Aggregation(partial=lambda: F.avg("x"), merge=F.avg, label="mean of means")
    with pytest.raises(AssertionError, match="mean of means breaks its law"):
        dm.testing.assert_aggregation_laws(broken, rows, schema="n bigint, x double")


def test_a_merge_that_forgets_older_state_breaks_the_law_only_in_two_groups() -> None:
    """The state of one group is the first partial of the next: a merge must accept its own result."""
    rows = [{"x": number} for number in range(1, 7)]
    forgetful = dm.Aggregation(partial=lambda: F.sum("x"), merge=lambda p: F.sum(F.least(p, F.lit(9))), label="capped")
    with pytest.raises(AssertionError, match="capped"):
        dm.testing.assert_aggregation_laws(forgetful, rows)
