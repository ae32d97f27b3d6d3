"""A region that reads the table of another one halts after a rewind of rows that it read; its remedy is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from followed import follow

import drainmark as dm
from drainmark.jobs.errors import ForeignTable, Halted
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.plan import plan_upgrade

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]


def first() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k string, n bigint"))
    def rows(scanned: Any) -> Any:
        return scanned

    dm.sink(rows, dm.DeltaAppend("rows"))


def reading(table: str, name: str, **options: Any) -> Callable[[], None]:
    def declared() -> None:
        def start(scanned: Any) -> Any:
            return scanned

        start.__name__ = name
        read = dm.consistent(trigger="operator-driven")(dm.source(dm.TableSource(table, **options))(start))
        totals = dm.aggregate(read, keys=["k"], values={"n": dm.sum("n")}, name=f"{name}_totals")
        dm.sink(totals, dm.DeltaUpsert(f"{name}_sums", keys=["k"]))
        dm.sink(read, dm.DeltaAppend(f"{name}_rows"))

    declared.__name__ = f"{name}_app"
    return declared


def sums(result: Result, name: str) -> dict[str, int]:
    return {row["k"]: row["n"] for row in result.sink(f"{name}_sums")}


def halted(result: Result) -> int:
    """Return the id that the remedy names, which is the same in the error and in `status`."""
    with pytest.raises(Halted) as caught:
        result.run()
    (command,) = result.status["remedies"]
    assert command.removesuffix(" --yes") in (caught.value.remedy or "")
    target = re.fullmatch(r"drainmark reset \S+ --to (\d+) --yes", command)
    assert target is not None, command
    return int(target[1])


def followed(result: Result) -> Result:
    """Halt, and do what the remedy says."""
    return result.rewind(halted(result)).run()


def test_what_a_rewind_withdrew_leaves_a_chain_of_regions(run_app: RunApp, tmp_path: Path) -> None:
    home = tmp_path / "home"
    files = {"1.csv": "tea,1\n", "2.csv": "tea,10\n", "3.csv": "tea,100\ncake,5\n"}
    one = run_app(first, files, home=home, max_group=2)
    two = run_app(reading("rows", "second"), home=home).run()
    three = run_app(reading("second_rows", "third"), home=home).run()
    everything = {"tea": 111, "cake": 5}
    assert sums(three, "third") == everything

    one.rewind(1)  # the file of the first group has rows on both sides
    assert halted(two) == 0, "the first version had withdrawn rows, too"
    one.run()
    assert sums(followed(two), "second") == everything
    assert sums(followed(three), "third") == everything
    assert sorted(row["n"] for row in three.sink("third_rows")) == [1, 5, 10, 100], "each row once"

    one.rewind(0).rewind(0).run()  # twice, and to the beginning
    assert sums(followed(two), "second") == everything
    assert sums(followed(three), "third") == everything
    assert sums(two.run(), "second") == everything, "once it is right, it goes on"


def test_a_reader_that_comes_later_notices_nothing(run_app: RunApp, tmp_path: Path) -> None:
    one = run_app(first, {"1.csv": "tea,1\n", "2.csv": "tea,10\n"}, home=tmp_path / "home", max_group=2)
    one.rewind(1).run()
    late = run_app(reading("rows", "late"), home=tmp_path / "home").run()
    assert sums(late, "late") == {"tea": 11}


def test_a_region_that_keeps_withdrawn_rows_asks_for_it_by_name(run_app: RunApp, tmp_path: Path) -> None:
    one = run_app(first, {"1.csv": "tea,1\n", "2.csv": "tea,10\n"}, home=tmp_path / "home")
    kept = run_app(reading("rows", "kept", on_change="ignore"), home=tmp_path / "home").run()
    one.rewind(1).run()
    assert sums(kept.run(), "kept") == {"tea": 21}, "rows that come again are there twice, as the docs say"


@pytest.mark.parametrize("is_kept", [False, True], ids=["read again", "kept"])
def test_who_read_withdrawn_rows_reads_them_again_or_keeps_them(
    run_app: RunApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    one = run_app(first, {"1.csv": "tea,1\n", "2.csv": "tea,10\n"}, home=home, max_group=1)
    reader = run_app(reading("rows", "reader"), home=home).run()
    one.rewind(1).run()
    with pytest.raises(Halted) as caught:
        reader.run()
    follow(str(caught.value), "resume" if is_kept else "reset", home)
    reader = run_app(reading("rows", "reader", on_change="ignore" if is_kept else "halt"), home=home).run()
    assert sums(reader, "reader") == {"tea": 21 if is_kept else 11}
    assert reader.status["state"] == "STARTED"


def test_a_plan_refuses_what_a_run_refuses_under_another_name_of_the_source(run_app: RunApp, tmp_path: Path) -> None:
    run_app(first, {"1.csv": "tea,1\n"}, home=tmp_path / "home")

    def first_renamed() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k string, n bigint"))
        def others(scanned: Any) -> Any:
            return scanned

        dm.sink(others, dm.DeltaAppend("rows"))

    renamed = run_app(first_renamed, home=tmp_path / "home")
    with pytest.raises(ForeignTable):
        plan_upgrade(renamed.workplace, renamed.opened, renamed.regions)
    with pytest.raises(ForeignTable):
        renamed.add({"2.csv": "tea,2\n"}).run()
