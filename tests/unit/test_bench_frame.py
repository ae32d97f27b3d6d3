"""The frame of the benchmarks: figures are merged part by part, ratios have the right direction, the page is whole."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # the benchmarks are programs in one folder, not a package

import bench  # noqa: E402
import bench_flink  # noqa: E402
import bench_parts  # noqa: E402
import bench_report  # noqa: E402
import bench_results  # noqa: E402
import bench_streaming  # noqa: E402
import bench_svg  # noqa: E402
from bench_input import WrongResult  # noqa: E402
from bench_results import HEADLINES, MACHINE, Headline, PartRun  # noqa: E402

REQUIRED = {
    "one_at_a_time_speedup", "bulk_ratio", "bulk_to_limit", "bulk_ratio_best", "upsert_bulk_ratio", "bulk_ratio_flink",
    "kept_512mb_whole_nonblocking", "kept_512mb_whole_blocking", "kept_512mb_incremental_nonblocking",
    "recovery_ratio_warm", "stages_duration_unaligned_100us", "unaligned_seconds_over_flink", "idle_tick_1m_others_s",
    "landing_to_visible_p50_s", "trigger_cost_growth", "idle_tick_1m_files_s",
    "state_bytes_per_changed_byte", "bytes_written_per_changed_byte_on_read", "state_cost_growth",
    "state_cost_growth_visible",
    "state_cost_vs_streaming", "state_cost_vs_flink",
    "recovery_growth", "rewind_growth_on_read",
    "recovery_ratio", "rewind_1000_ids_s", "loss_apps_worst", "loss_stateless_worst",
    "refcount_overhead", "unaligned_duration_ratio", "aligned_duration_ratio", "unaligned_loss",
    "persist_over_drain_32mb", "stage_recovery_ratio", "driver_bytes_per_input_byte", "driver_cpu_seconds_per_gb",
    "driver_limit_cores",
    "driver_memory_growth_mb", "changes_scd1_ratio", "changes_scd2_ratio",
}  # fmt: skip


def part_run(name: str, figures: dict[str, float] | None, **more: Any) -> PartRun:
    return PartRun(name=name, figures=figures, load_before=0.5, load_after=1.5, seconds=2.0, **more)


def test_every_required_figure_has_a_headline_and_a_part_that_owes_it() -> None:
    assert {line.key for line in HEADLINES} == REQUIRED
    assert {line.part for line in HEADLINES} <= bench_parts.PARTS.keys()


AIMS = {
    "bulk_to_limit": 0.5, "bulk_ratio": 3.0, "one_at_a_time_speedup": 8.0, "driver_limit_cores": 1000.0,
    "bytes_written_per_changed_byte_on_read": 10.0, "rewind_growth_on_read": 2.0, "state_cost_growth_visible": 1.5,
    "changes_scd1_ratio": 3.0, "changes_scd2_ratio": 3.0,
}  # fmt: skip
CEILINGS = {"bytes_written_per_changed_byte_on_read", "rewind_growth_on_read", "state_cost_growth_visible"}


def test_the_aims_stay() -> None:
    aimed = {line.key: line for line in HEADLINES if line.key in AIMS}
    assert {key: line.aim for key, line in aimed.items()} == AIMS
    assert {key for key, line in aimed.items() if line.is_ceiling} == CEILINGS


def test_the_end_of_a_run_says_in_words_what_is_met_missed_and_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {
        "bulk_to_limit": 0.2, "bulk_ratio": 3.1, "bulk_ratio_best": 1.2, "upsert_bulk_ratio": 1.3,
        "bulk_step_ms_process": 3.0, "bulk_step_ms_drain": 1.0, "bulk_step_ms_between": -0.1,
        "bulk_best_step_ms_process": 100.0,
    }  # fmt: skip
    monkeypatch.setattr(bench, "measure", lambda name, options, console: part_run(name, figures))
    assert bench.main(["--only", "bulk", "--out", str(tmp_path / "results.json")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"3 met, 1 missed, {sum(line.aim is not None for line in HEADLINES) - 4} not measured" in said
    missed = said.partition("missed: bulk_to_limit: 0.20 x, the aim is at least 0.50 x")[2]
    assert "where the time goes: process 75%, drain 25% what was tried:" in missed
    assert "not measured: one_at_a_time_speedup, by the part `one`" in said


def test_the_steps_of_a_headline_are_those_that_its_part_measures() -> None:
    """A prefix is written twice: where the figures are made, and at the headline."""
    made = set()
    for load in (
        bench_streaming.Load(folder=Path(), files=1, expected=None, is_bulk=is_bulk, upsert=upsert, best=best)
        for is_bulk in (False, True) for upsert in (False, True)
        for best in (None, {bench_streaming.OURS: 1, "peer": 1})
    ):  # fmt: skip
        outcome = bench_streaming.Outcome(
            seconds={bench_streaming.OURS: [1.0], "peer": [2.0]}, steps={"hand over": 0.5}
        )
        made |= {key for key in bench_streaming.entries(load, outcome, ["peer"]) if key.endswith("_step_ms_hand_over")}
    told = {f"{line.steps}hand_over" for line in HEADLINES if line.steps and line.part in ("one", "bulk")}
    assert told <= made
    assert len(told) == 4


def test_a_part_replaces_its_own_figures_and_keeps_those_of_others() -> None:
    first = bench_results.merged({}, part_run("bulk", {"bulk_ratio": 1.0, "bulk_old": 2.0}), {"cores": 2})
    both = bench_results.merged(first, part_run("rewind", {"rewind_1000_ids_s": 0.5}), {"cores": 2})
    again = bench_results.merged(both, part_run("bulk", {"bulk_ratio": 1.5}), {"cores": 2})
    assert {key: value for key, value in again.items() if key != MACHINE} == {
        "bulk_ratio": 1.5, "rewind_1000_ids_s": 0.5,
    }  # fmt: skip
    assert again[MACHINE]["cores"] == 2
    assert again[MACHINE]["parts"]["rewind"] == {
        "load_before": 0.5, "load_after": 1.5, "seconds": 2.0, "reason": None, "quick": False,
        "figures": ["rewind_1000_ids_s"],
    }  # fmt: skip


def test_a_part_that_fails_leaves_no_figure_of_an_earlier_run() -> None:
    before = bench_results.merged({}, part_run("bulk", {"bulk_ratio": 1.0}), {})
    after = bench_results.merged(before, part_run("bulk", None, reason="failed with exit code 1"), {})
    assert "bulk_ratio" not in after
    assert after[MACHINE]["parts"]["bulk"]["reason"] == "failed with exit code 1"


def test_a_ratio_is_taken_against_the_peer_with_the_fastest_median() -> None:
    ours, theirs = [2.0, 4.0, 3.0], {"slow": [1.0, 90.0, 90.0], "fast": [6.0, 6.0, 12.0]}
    ratio, by_round = bench_results.ratios(ours, theirs)
    assert ratio == 2.0
    assert by_round == [3.0, 1.5, 4.0]


def test_a_figure_comes_with_its_extreme_rounds() -> None:
    assert bench_results.spread("x", [3.0, 1.0, 2.0]) == {"x": 2.0, "x_low": 1.0, "x_high": 3.0}


@pytest.mark.parametrize(("key", "good", "bad"), [("recovery_ratio", 0.5, 0.51), ("bulk_ratio_best", 1.0, 0.99)])
def test_an_aim_is_a_floor_or_a_ceiling(key: str, good: float, bad: float) -> None:
    line = next(line for line in HEADLINES if line.key == key)
    assert line.is_met(good)
    assert not line.is_met(bad)


AIMED = [line for line in HEADLINES if line.aim is not None]


def beside(line: Headline, *, is_met: bool) -> float:
    """Return a value that just reaches, or just misses, an aim."""
    assert line.aim is not None
    above = line.is_ceiling != is_met
    return line.aim * (1.001 if above else 0.999)


def printed(results: dict[str, Any]) -> list[str]:
    """Return the rows of the terminal's table as `bench.py` prints it."""
    text = StringIO()
    Console(width=110, file=text).print(bench.headline_table(results))
    return text.getvalue().splitlines()


def card(results: dict[str, Any], key: str) -> str:
    return bench_report.page(results).partition(f'id="{key}"')[2].partition("</div>")[0]


@pytest.mark.parametrize("line", AIMED, ids=lambda line: line.key)
def test_a_miss_is_printed_as_a_miss_in_the_terminal_and_in_the_report(line: Headline) -> None:
    wrong, right = {line.key: beside(line, is_met=False)}, {line.key: beside(line, is_met=True)}
    assert sum("missed" in row for row in printed(wrong)) == 1
    assert f"missed: {line.aim_text}" in card(wrong, line.key)
    assert not any("missed" in row for row in printed(right))
    assert sum("met" in row for row in printed(right)) == 1
    assert ">met:" in card(right, line.key)


def test_all_misses_of_one_run_are_printed() -> None:
    results = {line.key: beside(line, is_met=False) for line in AIMED}
    results |= {f"{line.key}_{end}": 0.123 for line in AIMED for end in ("low", "high")}
    assert sum("missed" in row for row in printed(results)) == len(AIMED)
    assert bench_report.page(results).count("missed:") == len(AIMED)


def test_what_is_compared_with_a_peer_or_an_aim_of_the_paper_has_one() -> None:
    without = {line.key for line in HEADLINES if line.aim is None}
    assert without == {
        "kept_512mb_whole_blocking", "recovery_ratio_warm", "aligned_duration_ratio", "stages_duration_unaligned_100us",
        "persist_over_drain_32mb", "state_cost_vs_flink",
    }  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [
    ("bulk_ratio_flink", 1.39), ("unaligned_seconds_over_flink", 3.0), ("bulk_ratio_best", 0.9),
])  # fmt: skip
def test_figures_that_missed_are_printed_as_missed(key: str, value: float) -> None:
    assert sum("missed" in row for row in printed({key: value})) == 1


def test_the_report_draws_the_aims_of_the_headlines(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, float | None] = {}
    monkeypatch.setattr(bench_svg, "lines", lambda title, series, *, aim, **more: drawn.update({title: aim}) or "")
    bench_report.page({
        "kept_512mb_whole_nonblocking": 0.95, "kept_512mb_incremental_nonblocking": 0.99, "loss_vwap_2s": 0.0,
        "loss_stateless_4x8": 0.0,
    })  # fmt: skip
    aims = {line.key: line.aim for line in HEADLINES}
    assert drawn == {
        "Speed kept, the window written whole": aims["kept_512mb_whole_nonblocking"],
        "Speed kept, its changes written": aims["kept_512mb_incremental_nonblocking"],
        "What states cost an application": 1 - aims["loss_apps_worst"],
        "What states cost chains of functors": 1 - aims["loss_stateless_worst"],
    }


def test_the_default_parts_end_within_forty_minutes() -> None:
    taken = bench.options_of([]).only
    assert all(part.minutes > 0 for part in bench_parts.PARTS.values())
    assert sum(bench_parts.PARTS[name].minutes for name in taken) <= 38
    assert {name for name in bench_parts.PARTS if name not in taken} == {
        name for name, part in bench_parts.PARTS.items() if part.is_long
    }
    assert bench.options_of(["--all"]).only == list(bench_parts.PARTS)


def test_the_docs_and_the_program_name_every_part_that_is_long() -> None:
    docs = (BENCHMARKS.parents[1] / "docs" / "benchmarks.md").read_text()
    assert bench.__doc__ is not None
    for name, part in bench_parts.PARTS.items():
        if part.is_long:
            assert re.search(rf"^ +{name} +\(long\)", bench.__doc__, re.MULTILINE), name
            assert f"`{name}` ({part.minutes:g}" in docs, name


def test_every_part_is_a_function_that_takes_what_it_is_given() -> None:
    for part in bench_parts.PARTS.values():
        function = getattr(importlib.import_module(part.module), part.function)
        assert {"console", "quick", "root", *part.options} <= inspect.signature(function).parameters.keys(), part.name


def test_without_flink_no_figure_against_it_is_owed() -> None:
    results = {line.key: 1.0 for line in HEADLINES if line.key != "unaligned_seconds_over_flink"}
    assert bench_results.missing(results, ["stages"]) == []


def test_what_a_part_owes_and_does_not_deliver_is_found() -> None:
    results = {"trigger_cost_growth": 1.0}
    assert bench_results.missing(results, ["growth", "commits", "rewind"]) == ["rewind_1000_ids_s"]


def test_results_outlive_the_file_being_no_json(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert bench_results.load(path) == {}
    path.write_text("{")
    assert bench_results.load(path) == {}
    bench_results.save(path, {MACHINE: {"cores": 2}, "b": 1.0, "a": 2.0})
    assert list(json.loads(path.read_text())) == ["a", "b", MACHINE]


def test_one_part_that_fails_ends_with_1_and_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"bulk": None, "rewind": {"rewind_1000_ids_s": 0.5}}
    monkeypatch.setattr(bench, "measure", lambda name, options, console: part_run(name, figures[name]))
    out = tmp_path / "results.json"
    assert bench.main(["--only", "bulk,rewind", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["rewind_1000_ids_s"] == 0.5
    assert bench.main(["--only", "rewind", "--out", str(out)]) == 0


def test_a_part_that_does_not_deliver_what_it_owes_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure", lambda name, options, console: part_run(name, {"other": 1.0}))
    assert bench.main(["--only", "rewind", "--out", str(tmp_path / "results.json")]) == 1


def test_a_part_that_is_unknown_is_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        bench.options_of(["--only", "bulk,nonsense"])
    assert ended.value.code == 2


def outcome_of(measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Any]:
    """Run a part with the given function as its process does; return the exit code and the result file."""
    module = ModuleType("bench_of_a_test")
    module.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(bench_parts.PARTS, "test", bench_parts.Part("test", module.__name__, options=("rounds",)))
    result = tmp_path / "result.json"
    code = bench_parts.run("test", result, tmp_path, {"quick": True, "rounds": 3, "files": 7})
    return code, json.loads(result.read_text()) if result.exists() else None


def test_a_part_gets_the_options_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(console: Console, *, quick: bool, root: Path, rounds: int) -> dict[str, float]:
        assert root == tmp_path
        return {"rounds": rounds, "quick": quick}

    assert outcome_of(measure, tmp_path, monkeypatch) == (0, {"figures": {"rounds": 3, "quick": True}})


def test_a_part_that_cannot_be_measured_here_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(console: Console, **options: Any) -> dict[str, float]:
        raise bench_parts.PassedOver("there is no Flink")

    assert outcome_of(measure, tmp_path, monkeypatch) == (0, {"reason": "there is no Flink"})


def test_a_wrong_result_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(console: Console, **options: Any) -> dict[str, float]:
        raise WrongResult("a row is missing")

    assert outcome_of(measure, tmp_path, monkeypatch) == (1, None)


def test_the_totals_of_flink_are_those_after_the_last_change_of_each_key() -> None:
    printed = "\n".join([
        "warm:1> +I[k01, 9, 9.0]", "measured:1> +I[k01, 1, 10.5]", "measured:2> +I[k02, 1, 1.0E-2]",
        "measured:1> -U[k01, 1, 10.5]", "measured:1> +U[k01, 3, 12.0]", "measured> +I[k03, 1, 5.0]",
    ])  # fmt: skip
    assert bench_flink.totals_of(printed, "measured") == {"k01": (3, 12.0), "k02": (1, 0.01), "k03": (1, 5.0)}


class _Page(HTMLParser):
    """A strict parser that collects ids and tags, refuses references to other files, and checks the order of tags."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.tags: list[str] = []
        self.found: list[str] = []
        self.feed(text)
        assert self.tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert not {"src", "href", "onclick"} & values.keys()
        self.ids.add(values.get("id") or "")
        self.found.append(tag)
        if tag not in self.VOID:
            self.tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag


def test_the_page_shows_every_required_figure_and_needs_nothing_but_itself(tmp_path: Path) -> None:
    figures = dict.fromkeys(REQUIRED, 0.75) | bench_results.spread("recovery_ratio", [0.1, 0.3])
    for load in ("one_at_a_time", "bulk", "upsert_bulk"):
        figures |= {f"{load}_files_per_second_drainmark": 20.0, f"{load}_files_per_second_two_queries": 10.0}
        figures |= {f"{load}_step_ms_process": 5.0, f"{load}_step_ms_drain": 3.0}
    figures |= {"kept_8mb_whole_blocking": 0.99, "kept_8mb_whole_nonblocking": 1.0}  # incremental ones have another aim
    figures |= {"loss_vwap_2s": 0.02, "loss_vwap_2s_low": 0.01, "loss_vwap_2s_high": 0.03, "loss_vwap_32s": -0.001}
    figures |= {"loss_stateless_4x8": 0.0}
    figures |= {"stages_duration_aligned_0us": 1.0, "stages_duration_aligned_100us": 9.0}
    figures |= {"flink_stages_duration_unaligned_100us": 0.5}
    results = bench_results.merged({}, part_run("bulk", figures, reason="<none>"), bench.machine_facts())
    source, out = tmp_path / "results.json", tmp_path / "report" / "index.html"
    bench_results.save(source, results)

    assert bench_report.main(["--results", str(source), "--out", str(out)]) == 0

    text = out.read_text()
    page = _Page(text)
    assert page.ids >= REQUIRED
    assert "script" not in page.found
    assert "//" not in text.replace("<!--", "")
    assert page.found.count("svg") == 3 + 3 + 2 + 2 + 2
    assert "&lt;none&gt;" in text
    assert "missed: at most 0.50 x" not in text.partition('id="rewind_1000_ids_s"')[2]
    for key in figures:
        if not key.endswith(("_low", "_high")):
            assert f"<td>{key}</td>" in text


def test_the_page_says_what_was_not_measured() -> None:
    text = bench_report.page({"bulk_ratio": 1.2})
    assert text.count("<b>not measured</b>") == len(REQUIRED) - 1
    _Page(text)


def test_no_results_give_no_page(tmp_path: Path) -> None:
    assert bench_report.main(["--results", str(tmp_path / "none"), "--out", str(tmp_path / "index.html")]) == 1
    assert not (tmp_path / "index.html").exists()


def test_bars_are_as_long_as_their_values() -> None:
    drawn = bench_svg.bars("speed", [bench_svg.Bar("a", 10.0, "10"), bench_svg.Bar("b", 5.0, "5")])
    widths = [float(piece.split('"')[0]) for piece in drawn.split('width="')[1:]]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.1)


def test_a_stacked_bar_keeps_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {f"step {number}": float(number) for number in range(1, 10)}
    drawn = bench_svg.stacked("steps", steps, "ms")
    assert "the rest 10.0 ms, 22%" in drawn
    assert "step 9 9.0 ms, 20%" in drawn
