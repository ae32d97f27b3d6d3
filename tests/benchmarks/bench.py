"""`python tests/benchmarks/bench.py`: Drainmark against Structured Streaming, the same job on the same session.

The job: CSV files of 2000 rows -> rows above 50 to an append sink, and count and sum by key as state; and the same with
the totals going to an upsert sink as well. Measured is (a) one file at a time: seconds a file from the first trigger's
beginning to the last one's end, and (b) bulk: files a second of everything, scan, claim or query start, and end
included. Every contender runs once to warm up, then all take turns; figures are medians of the rounds, and every run's
tables are compared with the input: a wrong one ends the benchmark with exit code 1.

The peer, in the forms that a competent Spark engineer would choose between:

- *two queries*: filter -> Delta append, and a stateful `groupBy` beside it, in one session. Its totals go nowhere (the
  state store alone keeps them) without an upsert sink, and through `foreachBatch` and MERGE with one.
- *one query, merging*: `foreachBatch` persists the batch, appends the rows kept and merges the batch's totals into a
  Delta table, side by side. Not exactly-once as it stands: the MERGE of a repeated batch counts twice.

The ratios are taken against the fastest of them. Not among them are two that do less than the job: appending each
batch's totals, which leaves adding up to whoever reads, and `outputMode("complete")`, which writes the table whole.
`--all-peers` shows them too; they never are the denominator.

Printed last is what one commit costs by `deltalake`, which publishes to our own tables, and by delta-spark, which
publishes to tables that others made.

Files of a folder are listed within the peer's first trigger; ours are scanned before it, and claimed: both are in (b)
and neither in (a), where they would be spread over the few files of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import bench_commits
import bench_ours
import bench_peer
from bench_input import ROWS_A_FILE, Expected, WrongResult, write_files
from bench_peer import Measured
from rich.console import Console
from rich.table import Table

from resources.spark import SparkEngine, delta_settings

RESULTS = Path(__file__).parents[2] / "bench-results.json"
OURS = "Drainmark"
BULK_FILES_A_TRIGGER = 1000
_WARM_FILES = 6
_WARM_BULK = 200  # beyond what comes back by Arrow, so that the way of large groups is warm

Run = Callable[[Path, Path, int | None, bool], Measured]
"""Called with inbox, home, files a trigger (None: bulk), and whether the totals go to an upsert sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to do the job.

    Attributes:
        is_peer: its figures may be the denominator.
        variants: values of `upsert` that it can do.
    """

    name: str
    run: Run
    is_peer: bool = True
    variants: tuple[bool, ...] = (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A folder of input and how it is to be taken."""

    folder: Path
    files: int
    expected: Expected
    is_bulk: bool
    upsert: bool = False

    @property
    def label(self) -> str:
        return f"{'upsert, ' if self.upsert else ''}{'bulk' if self.is_bulk else 'one at a time'}"

    def seconds(self, measured: Measured) -> float:
        """Return the seconds that count."""
        return measured.whole_seconds if self.is_bulk else measured.span_seconds


@dataclass(slots=True)
class Outcome:
    """Seconds of each round, by contender, and our steps of the last round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])


class Benchmark:
    """All runs in one session; each run has a home of its own below `root`."""

    def __init__(self, root: Path, engine: SparkEngine, console: Console, *, all_peers: bool) -> None:
        self.root = root
        self.engine = engine
        self.console = console
        self.steps: Mapping[str, float] = {}
        self._homes = 0
        self.contenders = [
            Contender(name=OURS, run=self._ours, is_peer=False),
            Contender(name="two queries", run=self._peer(bench_peer.two_queries)),
            Contender(name="one query, merging", run=self._peer(bench_peer.one_query_merging)),
        ]
        if all_peers:
            self.contenders += [
                Contender(name="(one query, appending)", run=self._peer(bench_peer.one_query_appending),
                          is_peer=False, variants=(False,)),
                Contender(name="(complete mode)", run=self._peer(bench_peer.complete_mode),
                          is_peer=False, variants=(True,)),
            ]  # fmt: skip

    def of(self, load: Load) -> list[Contender]:
        return [contender for contender in self.contenders if load.upsert in contender.variants]

    def once(self, contender: Contender, load: Load) -> Measured:
        """Run a contender over a load and check what it left.

        Raises:
            WrongResult: its tables are not what the input says.
        """
        self._homes += 1
        home = self.root / f"home-{self._homes}"
        measured = contender.run(load.folder, home, None if load.is_bulk else 1, load.upsert)
        load.expected.check(f"{contender.name}, {load.label}", measured.kept, measured.totals)
        return measured

    def measure(self, load: Load, rounds: int) -> Outcome:
        """Let all contenders take turns."""
        outcome = Outcome(seconds={contender.name: [] for contender in self.of(load)})
        for number in range(rounds):
            for contender in self.of(load)[:: -1 if number % 2 else 1]:
                with self.console.status(f"{load.label}: round {number + 1} of {rounds}, {contender.name} …"):
                    seconds = load.seconds(self.once(contender, load))
                outcome.seconds[contender.name].append(seconds)
                self.console.print(f"[dim]{load.label}, {load.files} files, {contender.name}: {seconds:.2f} s[/dim]")
                if contender.name == OURS:
                    outcome.steps = self.steps
        return outcome

    def _ours(self, inbox: Path, home: Path, files: int | None, upsert: bool) -> Measured:
        measured, phases = bench_ours.measure(self.engine, inbox, home, files, upsert)
        self.steps = phases.seconds
        return measured

    def _peer(self, start: bench_peer.Start) -> Run:
        def run(inbox: Path, home: Path, files: int | None, upsert: bool) -> Measured:
            files = files or BULK_FILES_A_TRIGGER
            job = bench_peer.Job(session=self.engine.session, inbox=inbox, home=home, files=files, upsert=upsert)
            return bench_peer.measure(start, job)

        return run


def table_of(load: Load, outcome: Outcome, peers: Sequence[str]) -> tuple[Table, float]:
    """Return the figures of a load and our speed over the fastest peer's (above 1: we are faster)."""
    best = min(outcome.median(name) for name in peers)
    table = Table(title=f"{load.label}: {load.files} files of {ROWS_A_FILE} rows", title_justify="left")
    for column in ("", "seconds a file", "files/s", "rows/s", "against the fastest peer", "rounds, s"):
        table.add_column(column, justify="left" if not column else "right")
    for name, seconds in outcome.seconds.items():
        median = outcome.median(name)
        rate = load.files / median
        rounds = " ".join(f"{value:.2f}" for value in seconds)
        speed = f"{best / median:.2f} x"
        table.add_row(name, f"{1 / rate:.4f}", f"{rate:.1f}", f"{rate * ROWS_A_FILE:,.0f}", speed, rounds)
    return table, best / outcome.median(OURS)


def steps_line(load: Load, steps: Mapping[str, float]) -> str:
    """Return where our time went, per file."""
    parts = (f"{step} {seconds / load.files * 1000:.1f}" for step, seconds in steps.items())
    return f"{OURS}, ms a file: {', '.join(parts)}"


def loads(root: Path, files: int, bulk_files: int) -> Iterator[Load]:
    """Write the inputs, and yield every load to be measured."""
    for is_bulk, count in ((False, files), (True, bulk_files)):
        if not count:
            continue
        folder = root / f"input-{'bulk' if is_bulk else 'one'}"
        expected, _ = write_files(folder, count, seed=11 + is_bulk)
        for upsert in (False, True):
            yield Load(folder=folder, files=count, expected=expected, is_bulk=is_bulk, upsert=upsert)


def run(options: argparse.Namespace, root: Path, console: Console) -> dict[str, float]:
    """Measure everything and return the flat map of results.

    Raises:
        WrongResult: a contender miscounted.
    """
    conf = dict(item.split("=", 1) for item in options.conf)
    engine = SparkEngine(options.master, conf, root / "spark")
    console.print(f"master {options.master}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    for key, value in sorted({**engine.session_settings(), **delta_settings()}.items()):
        console.print(f"  {key} = {value}", highlight=False)
    try:
        bench = Benchmark(root, engine, console, all_peers=options.all_peers)
        for warm in loads(root / "warm", min(_WARM_FILES, options.files), min(_WARM_BULK, options.bulk_files)):
            bench.measure(warm, 1)
        results: dict[str, float] = {}
        for load in loads(root / "measured", options.files, options.bulk_files):
            outcome = bench.measure(load, options.rounds)
            table, ratio = table_of(load, outcome, [c.name for c in bench.of(load) if c.is_peer])
            console.print(table)
            console.print(steps_line(load, outcome.steps), highlight=False)
            results.update(entries(load, outcome, ratio))
        results.update(commit_entries(bench_commits.commit_seconds(engine, root / "commits", options.commits), console))
        return results
    finally:
        engine.stop()


def entries(load: Load, outcome: Outcome, ratio: float) -> dict[str, float]:
    """Return a load's part of the results: the ratio first, then files a second by contender."""
    prefix = ("upsert_" if load.upsert else "") + ("bulk" if load.is_bulk else "one_at_a_time")
    rates = {
        f"{prefix}_files_per_second_{'_'.join(name.lower().strip('()').replace(',', '').split())}": round(
            load.files / outcome.median(name), 2
        )
        for name in outcome.seconds
    }
    return {f"{prefix}_{'ratio' if load.is_bulk else 'speedup'}": round(ratio, 3), **rates}


def commit_entries(seconds: Mapping[str, float], console: Console) -> dict[str, float]:
    """Print what a commit costs on each publisher, and return it for the results."""
    costs = ", ".join(f"{value * 1000:.0f} ms by {name}" for name, value in seconds.items())
    console.print(f"one commit of {ROWS_A_FILE} rows, checked and read back: {costs}", highlight=False)
    return {f"commit_seconds_{name.replace('-', '_')}": round(value, 4) for name, value in seconds.items()}


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; `--quick` sets the sizes that are not given."""
    parser = argparse.ArgumentParser(description="Drainmark against Structured Streaming.")
    parser.add_argument("--files", type=int, help="files taken one at a time (30; 0: none)")
    parser.add_argument("--bulk-files", type=int, help="files taken in bulk (2000; 0: none)")
    parser.add_argument("--rounds", type=int, help="turns of each contender (3)")
    parser.add_argument("--commits", type=int, help="commits timed on each publisher (15)")
    parser.add_argument("--quick", action="store_true", help="6 files, 100 in bulk, one round: shows that it runs")
    parser.add_argument("--all-peers", action="store_true", help="also the peers that do less than the job")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark setting for all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go (bench-results.json)")
    options = parser.parse_args(arguments)
    sizes = (6, 100, 1, 3) if options.quick else (30, 2000, 3, 15)
    for name, size in zip(("files", "bulk_files", "rounds", "commits"), sizes, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, size)
    return options


def main() -> int:
    """Run the benchmark; 0, or 1 where a result was wrong."""
    options, console = options_of(), Console(width=110)
    with tempfile.TemporaryDirectory(prefix="drainmark-bench-") as root:
        try:
            results = run(options, Path(root), console)
        except WrongResult as wrong:
            console.print(f"[red]wrong result[/red]: {wrong}")
            return 1
    options.out.write_text(json.dumps(results, indent=2) + "\n")
    console.print_json(data={key: value for key, value in results.items() if "files_per_second" not in key})
    console.print(f"written to {options.out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
