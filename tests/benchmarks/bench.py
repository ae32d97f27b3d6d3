"""`python tests/benchmarks/bench.py`: measures Drainmark's claims about speed on this machine.

Each part runs in a process of its own. By default the parts run that together take less than 40 minutes on two cores;
`--only figure7,stages` runs only these, `--all` runs all. A part marked (long) is left out unless it is named:

    one, bulk     the same job as Structured Streaming: one file at a time, and many (`bench_streaming`)
    one_upsert    (long) one file at a time, the totals in an upsert table
    changes       (long) inserts, updates and deletes as newest rows and as a history, against MERGE (`bench_changes`)
    flink         the same job as Flink SQL (`bench_flink`; needs `make bench-flink-setup`)
    applications  (long) the columns of the paper's table 1 for its applications (`bench_applications`)
    checkpoints   (long) what checkpoints of a large state cost (`bench_checkpoints`)
    counting      what reference counting costs a stream (`bench_counting`; streamz needs `make bench-streamz-setup`)
    figure7       (long) what consistent states cost the applications and stateless chains (`bench_figure7`)
    formats       (long) rows a second a core, by the format of files (`bench_formats`)
    landing       from a file's landing to its rows in the lake, through Dagster (`bench_landing`)
    listing       a tick over a million known files in a tree of folders (`bench_listing`)
    listing_million  (long) the same in one folder, and in a bucket
    growth        the cost of a trigger as history grows (`bench_growth`)
    state         (long) the cost of a trigger with ten million keys, and the peers' (`bench_state`)
    recovery      from SIGKILL to new rows (`bench_recovery`)
    recovery_periods  (long) the same with other numbers of files a trigger
    rewind        `reset --to N` across a thousand ids (`bench_rewind`)
    stages        (long) checkpoints while a stage holds the flow back, beside Flink's (`bench_stages`; as `flink`)
    persisting    (long) what is in flight, written with a state, against draining it (`bench_persisting`)
    stage_recovery  (long) a stage that restarts by itself, against a reset of the region (`bench_stage_recovery`)
    commits       one commit on each publisher (`bench_commits`)
    driver        (long) what of a large group passes through the run's process (`bench_driver`; needs root and `ip`)
    driver_memory (long) what the run's process holds of a large group, and of a large state (`bench_driver_memory`)
    large_files   (long) what a run holds of one file of gigabytes (`bench_driver_memory`)

Figures go to `bench-results.json`, one flat map; `<key>_low` and `<key>_high` are the extreme rounds. Earlier figures
of other parts are kept. Every part checks the tables that its contenders leave. If a table is wrong, or a part fails,
the others still run, and the exit code is 1. At the end each aim is met, missed or not measured. A missed aim comes
with the shares of its steps and with what was tried; the exit code stays 0. docs/benchmarks.md says how each figure is
taken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_parts import PARTS
from bench_results import HEADLINES, RESULTS, PartRun, judged, load, merged, missing, said, save, verdict
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
_SIZES = {"files": (20, 6), "bulk_files": (2000, 100), "rounds": (3, 1), "commits": (15, 3)}
"""By option: its default value, and its value with `--quick`."""


def machine_facts() -> dict[str, Any]:
    """Return the facts about the machine that figures depend on: cores, memory, system, versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    packages = ("pyspark", "delta-spark", "deltalake", "pyarrow", "dagster")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def measure(name: str, options: argparse.Namespace, console: Console) -> PartRun:
    """Run a part in a process of its own, with a folder that is deleted afterwards."""
    before, started = os.getloadavg()[0], time.monotonic()
    console.rule(name)
    chosen = {key: value for key, value in vars(options).items() if key not in ("only", "all", "out")}
    with tempfile.TemporaryDirectory(prefix=f"drainmark-bench-{name}-", ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "result.json"
        program = [sys.executable, str(HERE / "bench_parts.py"), name, str(result), folder, json.dumps(chosen)]
        code = subprocess.run(program, check=False).returncode
        outcome = load(result) if code == 0 else {"reason": f"failed with exit code {code}", "failed": True}
    if outcome.get("reason"):
        colour = "red" if outcome.get("failed") else "yellow"
        console.print(f"[{colour}]{name}[/{colour}]: {outcome['reason']}")
    return PartRun(
        name=name,
        figures=None if outcome.get("failed") else outcome.get("figures", {}),
        load_before=before,
        load_after=os.getloadavg()[0],
        seconds=time.monotonic() - started,
        reason=outcome.get("reason"),
        quick=options.quick,
    )


def headline_table(results: dict[str, Any]) -> Table:
    """Return a table of the headline figures, each beside its aim."""
    table = Table(title="Headlines", title_justify="left")
    for column in ("", "figure", "rounds", "aim", ""):
        table.add_column(column, no_wrap=bool(column))
    table.columns[-1].no_wrap = True
    for line in HEADLINES:
        value = results.get(line.key)
        if value is None:
            table.add_row(line.title, judged(line, results), "", line.aim_text, "")
            continue
        low, high = (results.get(f"{line.key}_{bound}") for bound in ("low", "high"))
        rounds = "" if low is None or high is None else f"{said(low, line.unit)} to {said(high, line.unit)}"
        table.add_row(line.title, said(value, line.unit), rounds, line.aim_text, judged(line, results))
    return table


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; `--quick` sets the sizes that are not given."""
    parser = argparse.ArgumentParser(description="Drainmark against its peers, and against its own aims.")
    short = [name for name, part in PARTS.items() if not part.is_long]
    long = [name for name, part in PARTS.items() if part.is_long]
    taken = f"by default {_with_minutes(short)}; also {_with_minutes(long)}"
    parser.add_argument("--only", metavar="PART,…", help=taken)
    parser.add_argument("--all", action="store_true", help="every part, the long ones as well")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: shows that it runs")
    parser.add_argument("--files", type=int, help="files taken one at a time (20; 0: none)")
    parser.add_argument("--bulk-files", type=int, help="files taken in bulk (2000; 0: none)")
    parser.add_argument("--rounds", type=int, help="turns of each contender (3)")
    parser.add_argument("--commits", type=int, help="commits timed on each publisher (15)")
    parser.add_argument("--all-peers", action="store_true", help="also the peers that do less than the job")
    parser.add_argument("--against", metavar="PATH", help="`formats`: a checkout of another commit, with its .venv")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark setting for all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go (bench-results.json)")
    options = parser.parse_args(arguments)
    options.only = [name for name in options.only.split(",") if name] if options.only else short
    if options.all:
        options.only = list(PARTS)
    for name in options.only:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}: {', '.join(PARTS)}")
    for name, sizes in _SIZES.items():
        if getattr(options, name) is None:
            setattr(options, name, sizes[options.quick])
    return options


def _with_minutes(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {PARTS[name].minutes:g} min" for name in names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, saving the results after each; return 0, or 1 if a part failed or lacks a figure."""
    options, console = options_of(arguments), Console(width=110)
    results, failed, passed = load(options.out), [], []
    for name in options.only:
        run = measure(name, options, console)
        results = merged(load(options.out), run, machine_facts())  # another benchmark may have written meanwhile
        save(options.out, results)
        if run.figures is None:
            failed.append(name)
        elif run.reason:
            passed.append(name)
    console.print(headline_table(results))
    for line in verdict(results):
        console.print(line, highlight=False, markup=False)
    measured = [name for name in options.only if name not in failed + passed]
    if lacking := missing(results, measured):
        console.print(f"[red]owed and not delivered[/red]: {', '.join(lacking)}")
    console.print(f"written to {options.out.name}; `make bench-report` draws it")
    if failed:
        console.print(f"[red]failed[/red]: {', '.join(failed)}")
    return 1 if failed or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
