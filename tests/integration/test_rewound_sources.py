"""A region that reads the table of another one halts after a rewind of rows that it read; its remedy is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from followed import follow

import drainmark as dm
from drainmark.jobs.errors import ForeignTable, Halted, RewindRefused, UsageError
from drainmark.orchestration.cli.main import invoke
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
    target = re.fullmatch(r"drainmark reset \S+ --to (\d+) --cascade --yes", command)
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


def test_a_chain_goes_back_by_one_command(
    run_app: RunApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    one = run_app(first, {"1.csv": "tea,1\n", "2.csv": "tea,10\n"}, home=home, max_group=1)
    two = run_app(reading("rows", "second"), home=home).run()  # one group: the next region reads it as one slice
    three = run_app(reading("second_rows", "third"), home=home).run()
    command = ["reset", "first", "--to", "1", "--home", str(home)]
    assert invoke(command) == UsageError.exit_code
    plan = capsys.readouterr()
    assert "third_app/third: rewind from 1 to 0, because it read rows of second_app/second above 1" in plan.out
    assert "repeat it with --yes --cascade" in plan.err
    assert invoke([*command, "--yes"]) == RewindRefused.exit_code
    refused = capsys.readouterr().err
    assert "third_app/third, second_app/second read rows that leave first/rows" in refused
    assert sums(two.run(), "second") == {"tea": 11}

    follow(refused, "reset", home)
    assert [sums(each, name) for each, name in ((two, "second"), (three, "third"))] == [{"tea": 1}, {}]
    one.run()
    assert [sums(each.run(), name) for each, name in ((two, "second"), (three, "third"))] == [{"tea": 11}] * 2
    assert sorted(row["n"] for row in three.sink("third_rows")) == [1, 10]
    assert [each.status["reads"][0]["stays"] for each in (two, three)] == [None, None]


def test_a_reader_in_another_home_finds_out_and_its_remedy_is_right(
    run_app: RunApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the other home can be written to; the readers of the reader go back with it."""
    monkeypatch.chdir(tmp_path)
    one = run_app(first, {"1.csv": "tea,1\n", "2.csv": "tea,10\n"}, home=tmp_path / "home", max_group=1)
    home = tmp_path / "elsewhere" / "home"
    two = run_app(reading(str(tmp_path / "home" / "lake" / "rows"), "second"), home=home).run()
    three = run_app(reading("second_rows", "third"), home=home).run()
    assert two.status["reads"][0]["home"] == str(tmp_path / "home")
    one.rewind(1).run()
    with pytest.raises(Halted) as caught:
        two.run()
    follow(str(caught.value), "reset", home)
    assert [sums(each.run(), name) for each, name in ((two, "second"), (three, "third"))] == [{"tea": 11}] * 2
    assert sorted(row["n"] for row in three.sink("third_rows")) == [1, 10]
