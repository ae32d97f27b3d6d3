"""`python tests/benchmarks/bench_report.py`: draw bench-results.json as one page, bench-report/index.html.

The page needs no other file: no script, no font, no address. It also names the headline figures not measured.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import bench_svg
from bench_results import HEADLINES, MACHINE, RESULTS, Headline, aim_of, load, said, steps_of
from bench_svg import Bar, Line

PAGE = RESULTS.parent / "bench-report" / "index.html"

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6b7e; --paper: #fbfbf9; --card: #fff; --rule: #dde2e8;
  --good: #18794e; --bad: #b4361e; --series-0: #0b66c3; --series-1: #93a4b8; --series-2: #d08700; --series-3: #3a9d7a;
  --series-4: #8a63b8; --series-5: #c9ced6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b8; --paper: #12161c; --card: #1a2029;
  --rule: #2d3642; --good: #4cc38a; --bad: #ff8f73; --series-0: #5aa9f5; --series-1: #66768a; --series-2: #e6ad45;
  --series-3: #5fc2a0; --series-4: #b493e0; --series-5: #3f4958; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.6rem 0 .4rem; }
p, figcaption { color: var(--soft); margin: .2rem 0 1rem; max-width: 46rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(13.5rem, 1fr)); gap: .8rem; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .8rem .9rem; }
.card b { display: block; font-size: 1.65rem; font-variant-numeric: tabular-nums; line-height: 1.25; }
.card span { display: block; font-size: .86rem; color: var(--soft); }
.card .met { color: var(--good); } .card .unmet { color: var(--bad); }
.card.none b { color: var(--soft); font-weight: 400; }
figure { margin: 0 0 .7rem; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 1rem 1.1rem .4rem; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 13px; fill: var(--ink); }
svg .strong { font-weight: 600; }
.whisker { stroke: var(--ink); fill: none; opacity: .55; } .grid { stroke: var(--rule); }
.aim { stroke: var(--good); stroke-dasharray: 5 4; } .line { fill: none; stroke-width: 2.5; }
.band { opacity: .18; stroke: none; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: left; padding: .28rem .8rem .28rem 0; border-bottom: 1px solid var(--rule); }
td.n { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; } th.n { text-align: right; }
""" + "".join(
    f".fill{n} {{ fill: var(--series-{n}); }} .s{n} {{ stroke: var(--series-{n}); }} "
    f".band.s{n} {{ fill: var(--series-{n}); }}\n"
    for n in range(6)
)

_LOADS = {
    "one_at_a_time": "One file at a time",
    "upsert_one_at_a_time": "One file at a time, totals into an upsert table",
    "bulk": "Bulk",
    "upsert_bulk": "Bulk, totals into an upsert table",
}
_FLINK = {
    "flink_files_per_second_ours": "Drainmark",
    "flink_files_per_second": "Flink SQL, warm, without its start-up",
    "flink_files_per_second_whole": "Flink SQL, warm, with planning and cluster",
    "flink_files_per_second_cold": "Flink SQL, a process of its own",
}
_RECOVERY = {
    "recovery_seconds_resident": "Drainmark, Spark lives on",
    "recovery_seconds_bare": "Drainmark, a new JVM",
    "recovery_seconds_peer": "Structured Streaming",
}
_STAGES = {
    "stages_duration_aligned": "Drainmark, aligned",
    "stages_duration_unaligned": "Drainmark, unaligned",
    "stages_duration_unaligned_durable": "Drainmark, unaligned, durable channels",
    "flink_stages_duration_aligned": "PyFlink, aligned",
    "flink_stages_duration_unaligned": "PyFlink, unaligned",
}
_COUNTS = {
    "trigger_seconds_start": "a trigger of a new region",
    "trigger_seconds_end": "a trigger after 100 000",
}


def page(results: Mapping[str, Any]) -> str:
    """Return the page: the headline figures, the charts of each section, all figures, and the machine."""
    drawn = ((title, text, charts) for title, text, charts in _sections(results) if charts)
    sections = "\n".join(f"<h2>{escape(title)}</h2>\n<p>{escape(text)}</p>\n{_figures(charts)}"
                         for title, text, charts in drawn)  # fmt: skip
    machine = results.get(MACHINE, {})
    facts = ", ".join(_facts(machine))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Drainmark: speed</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>Drainmark: speed</h1>\n<p>{escape(facts)}. Ratios are taken in one run on one machine; medians, with the "
        "extreme rounds beside them. <code>docs/benchmarks.md</code> says how each figure is taken.</p>\n"
        f'<div class="cards">{"".join(_card(line, results) for line in HEADLINES)}</div>\n{sections}\n'
        f"<h2>The parts</h2>\n{_parts(machine)}\n<h2>All figures</h2>\n{_all(results)}\n</body></html>\n"
    )


def _figures(charts: Sequence[str]) -> str:
    return "\n".join(f"<figure>{chart}</figure>" for chart in charts)


def _card(line: Headline, results: Mapping[str, Any]) -> str:
    value = results.get(line.key)
    if value is None:
        body = '<b>not measured</b><span class="unmet">' + escape(f"aim: {line.aim_text}") + "</span>"
    else:
        judged = {
            True: f'<span class="met">met: {line.aim_text}</span>',
            False: f'<span class="unmet">missed: {line.aim_text}</span>',
            None: "",
        }[line.is_met(value)]
        body = f"<b>{said(value, line.unit)}</b>{judged}<span>{escape(_rounds(line, results))}</span>"
    parts = results.get(MACHINE, {}).get("parts", {})
    small = " Small sizes." if value is not None and parts.get(line.part, {}).get("quick") else ""
    kind = "card none" if value is None else "card"
    return f'<div class="{kind}" id="{line.key}"><span>{escape(line.title)}.{small}</span>{body}</div>\n'


def _rounds(line: Headline, results: Mapping[str, Any]) -> str:
    low, high = results.get(f"{line.key}_low"), results.get(f"{line.key}_high")
    return "" if low is None or high is None else f"{line.span}: {said(low, line.unit)} to {said(high, line.unit)}"


def _sections(results: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    for prefix, title in _LOADS.items():
        names = _contenders(results, f"{prefix}_files_per_second_")
        charts = [_bars(f"{title}: files a second", names, results, "files/s", ours="drainmark")] if names else []
        if steps := steps_of(f"{prefix}_step_ms_", results):
            charts.append(bench_svg.stacked(f"{title}: where our time goes, ms a file", steps, "ms"))
        yield title, "Files a second, more is better; below, where our own time goes, a file.", charts
    yield ("Bulk, beside Flink SQL", "The same files and the same job, in turns; files a second, more is better.",
           _charts(_FLINK, results, "files/s", "Drainmark and Flink: files a second"))  # fmt: skip
    text = "Speed kept while checkpoints are taken, over the size of the window's state. Dashed: the aim."
    yield "What a checkpoint costs", text, list(_curves(results))
    for what, unit, text, losses, aim in _losses(results):
        yield what, text, [bench_svg.lines(what, losses, x=unit, y="share of the speed without states", aim=aim)]
    yield ("Recovery", "Seconds from SIGKILL to the first commit of new rows, less is better.",
           _charts(_RECOVERY, results, "s", "Recovery: seconds from the kill to new rows"))  # fmt: skip
    yield ("States under back-pressure", "Seconds from a state's trigger until it is durable, less is better.",
           list(_durations(results)))  # fmt: skip
    yield ("Cost over history", "Seconds a trigger costs, as history grows.",
           _charts(_COUNTS, results, "s", "Seconds a trigger, over history"))  # fmt: skip


def _contenders(results: Mapping[str, Any], prefix: str) -> dict[str, str]:
    keys = [key for key in results if key.startswith(prefix) and not key.endswith(("_low", "_high"))]
    ordered = sorted(keys, key=lambda key: (not key.endswith("drainmark"), -results[key]))
    return {key: key.removeprefix(prefix).replace("_", " ").replace("drainmark", "Drainmark") for key in ordered}


def _charts(names: Mapping[str, str], results: Mapping[str, Any], unit: str, title: str) -> list[str]:
    there = {key: label for key, label in names.items() if key in results}
    return [_bars(title, there, results, unit, ours="Drainmark")] if there else []


def _bars(title: str, names: Mapping[str, str], results: Mapping[str, Any], unit: str, *, ours: str) -> str:
    rows = [
        Bar(label, results[key], said(results[key], unit), results.get(f"{key}_low"), results.get(f"{key}_high"),
            is_ours=label.lower().startswith(ours.lower()))
        for key, label in names.items()
    ]  # fmt: skip
    return bench_svg.bars(title, rows)


def _curves(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a chart for each way to write a state, since each has an aim of its own."""
    for way, what in (("whole", "the window written whole"), ("incremental", "its changes written")):
        if curve := list(_curve(results, way)):
            aim = aim_of(f"kept_512mb_{way}_nonblocking")
            yield bench_svg.lines(
                f"Speed kept, {what}", curve, x="MB", y="share of the speed without checkpoints", aim=aim
            )


def _curve(results: Mapping[str, Any], way: str) -> Iterator[Line]:
    for mode in (f"{way}_nonblocking", f"{way}_blocking"):
        sizes = sorted(int(m[1]) for key in results if (m := re.fullmatch(rf"kept_(\d+)mb_{mode}", key)))
        keys = [f"kept_{size}mb_{mode}" for size in sizes]
        band = [(results.get(f"{key}_low", results[key]), results.get(f"{key}_high", results[key])) for key in keys]
        if keys:
            points = [(size, results[key]) for size, key in zip(sizes, keys, strict=True)]
            yield Line(mode.replace("_", ", "), points, band)


def _durations(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a chart for each sleep of the sleepy stage."""
    for sleep in sorted(int(m[1]) for key in results if (m := re.fullmatch(r"stages_duration_aligned_(\d+)us", key))):
        names = {f"{key}_{sleep}us": label for key, label in _STAGES.items()}
        yield from _charts(names, results, "s", f"Seconds to a state, a stage sleeps {sleep / 1000:g} ms a row")


def _losses(results: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[Line], float]]:
    """Yield (title, unit of x, text, lines, aim) of the measured charts of figure 7."""
    chains = _kept(results, r"loss_(stateless_\d+)x(\d+)")
    applications = _kept(results, r"loss_(\w+)_(\d+)s")
    text = "Throughput with a state every so many seconds over that of the same job without. Dashed: the aim."
    if applications:
        yield "What states cost an application", "s", text, applications, _least_kept("loss_apps_worst")
    text = "The same for rows dealt to one chain of functors, or four, by the length of a chain."
    if chains:
        yield "What states cost chains of functors", "functors", text, chains, _least_kept("loss_stateless_worst")


def _least_kept(key: str) -> float:
    """Return the least share of speed to keep, for a headline whose aim is the largest loss."""
    return 1 - (aim_of(key) or 0.0)


def _kept(results: Mapping[str, Any], pattern: str) -> list[Line]:
    """Return lines of the speed kept, with intervals: a line for each first group of the pattern, over its second."""
    found: dict[str, dict[int, str]] = {}
    for key in results:
        if match := re.fullmatch(pattern, key):
            found.setdefault(match[1], {})[int(match[2])] = key
    lines = []
    for name, keys in found.items():
        places = sorted(keys)
        values = [(place, 1 - results[keys[place]]) for place in places]
        ends = [[1 - results.get(f"{keys[place]}_{end}", results[keys[place]]) for end in ("high", "low")]
                for place in places]  # fmt: skip
        lines.append(Line(name.replace("stateless_", "chains: "), values, [(low, high) for low, high in ends]))
    return lines


def _facts(machine: Mapping[str, Any]) -> Iterator[str]:
    if machine:
        yield f"{machine.get('cores')} cores"
        yield f"{machine.get('memory_gb')} GB of memory"
        yield str(machine.get("system"))
        yield f"Python {machine.get('python')}"
        yield from (f"{name} {version}" for name, version in machine.get("versions", {}).items())
    else:
        yield "nothing is known of the machine"


def _parts(machine: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{part['seconds']:.0f}", f"{part['load_before']:.2f}", f"{part['load_after']:.2f}",
         part["reason"] or ("small sizes, one round" if part.get("quick") else "")]
        for name, part in machine.get("parts", {}).items()
    ]  # fmt: skip
    return _table(["part", "seconds", "load before", "load after", ""], rows, numbers=(1, 2, 3))


def _all(results: Mapping[str, Any]) -> str:
    keys = [key for key in sorted(results) if key != MACHINE and not key.endswith(("_low", "_high"))]
    rows = []
    for key in keys:
        low, high = results.get(f"{key}_low"), results.get(f"{key}_high")
        noise = "" if low is None or high is None or not results[key] else f"{(high - low) / abs(results[key]):.0%}"
        rows.append([key, *("" if value is None else f"{value:,.4g}" for value in (results[key], low, high)), noise])
    return _table(["figure", "median", "lowest", "highest", "spread"], rows, numbers=(1, 2, 3, 4))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    def row(tag: str, values: Sequence[str]) -> str:
        kinds = (" class=n" if number in numbers else "" for number in range(len(values)))
        cells = (f"<{tag}{kind}>{escape(value)}</{tag}>" for kind, value in zip(kinds, values, strict=True))
        return f"<tr>{''.join(cells)}</tr>\n"

    return f'<div class="scroll"><table>{row("th", heads)}{"".join(row("td", values) for values in rows)}</table></div>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return 0, or 1 if there are no results."""
    parser = argparse.ArgumentParser(description="Draw bench-results.json as one page.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    results = load(options.results)
    if not results:
        sys.stderr.write(f"{options.results.name} holds no results: make bench\n")
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page(results))
    sys.stdout.write(f"written to {options.out.parent.name}/{options.out.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
