"""Parts `one`, `one_upsert` and `bulk`: Drainmark against Structured Streaming, the same job on the same session.

The job: CSV files of 2000 rows -> rows above 50 to an append sink, and count and sum by key as state; and the same job
with the totals written to an upsert sink as well. It measures (a) one file at a time: seconds for a file, from the
first trigger's beginning to the last one's end, and (b) bulk: files a second of the whole run, with scan, claim or
query start, and end. Every contender runs once to warm up, then all run in turns. Figures are medians of the rounds.
Every run's tables are compared with the input; a wrong table ends the part with an error.

The peer, in the forms that a competent Spark engineer would choose between:

- *two queries*: filter -> Delta append, and a stateful `groupBy`, in one session. Without an upsert sink, its totals go
  nowhere (only the state store keeps them); with one, they go through `foreachBatch` and MERGE.
- *one query, merging*: `foreachBatch` persists the batch, appends the rows kept and merges the batch's totals into a
  Delta table, in parallel. It is not exactly-once in this form: the MERGE of a repeated batch counts twice.

In bulk all take the same number of files in a trigger, `BULK_FILES_A_TRIGGER`, and the ratio is `bulk_ratio`. The best
number of files differs, so `bulk_ratio_best` compares each at its best: ours with its default limits, each peer with
the number of `PEER_TRIGGERS` that was its fastest in a trial.

The ratios are taken against the fastest of these peers. Two other peers do less than the job: one appends each batch's
totals, which readers must add up, and one has `outputMode("complete")`, which writes the whole table each time.
`--all-peers` shows them too; they are never the denominator.

In bulk, Polars and DuckDB also show the machine's own speed (`bulk_to_limit`, `bulk_to_duckdb`): the same files and the
same outputs, written once, without a state to continue from or to rewind to (`limit_peer`).

The peer lists the folder in its first trigger; we scan it and claim the region before ours. (b) includes both. (a) does
not include our scan and claim, since the few files of its run would have to share their cost.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import bench_ours
import bench_peer
from bench_input import ROWS_A_FILE, Expected, write_files
from bench_parts import asked
from bench_peer import Measured
from bench_results import Figures, ratios, spread
from rich.console import Console
from rich.table import Table

from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.spark.session_settings import delta_settings

OURS = "Drainmark"
LIMITS = {"Polars": "bulk_to_limit", "DuckDB": "bulk_to_duckdb"}
"""The programs that show the machine's own speed, and the keys of our files a second over theirs."""
_PACKAGES = Path(__file__).parents[2] / ".bench-limit"
_LIMIT_JOB = Path(__file__).with_name("limit_peer.py")
BULK_FILES_A_TRIGGER = 1000
PEER_TRIGGERS = (500, 1000, 2000)
"""Numbers of files in a trigger that are tried for each peer."""
_WARM_FILES = 6
_WARM_BULK = 200  # too large to come back by Arrow, so that the code for large groups is warm

Run = Callable[[Path, Path, int | None, bool], Measured]
"""Takes inbox, home, files in a trigger (None: as many as the limits allow), and whether the totals are upserted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to do the job.

    Attributes:
        is_peer: its figures may be the denominator.
        variants: values of `upsert` that it can do.
        any_trigger: it has no triggers; it takes part only in bulk loads in which all have the same number of files.
    """

    name: str
    run: Run
    is_peer: bool = True
    any_trigger: bool = False
    variants: tuple[bool, ...] = (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A folder of input and the way to process it.

    Attributes:
        best: the best number of files in a trigger, by contender; None if all take the same number.
    """

    folder: Path
    files: int
    expected: Expected
    is_bulk: bool
    upsert: bool = False
    best: Mapping[str, int | None] | None = None

    @property
    def label(self) -> str:
        kind = "bulk" if self.is_bulk else "one at a time"
        return f"{'upsert, ' if self.upsert else ''}{kind}{', each at its best' if self.best else ''}"

    @property
    def prefix(self) -> str:
        """Return the beginning of the keys of its figures."""
        return ("upsert_" if self.upsert else "") + ("bulk" if self.is_bulk else "one_at_a_time")

    @property
    def suffix(self) -> str:
        return "_best" if self.best else ""

    def a_trigger(self, contender: str) -> int | None:
        """Return the files in a trigger of a contender; None for as many as its limits allow."""
        if self.best:
            return self.best[contender]
        return BULK_FILES_A_TRIGGER if self.is_bulk else 1

    def seconds(self, measured: Measured) -> float:
        """Return the seconds that this load measures."""
        return measured.whole_seconds if self.is_bulk else measured.span_seconds


@dataclass(slots=True)
class Outcome:
    """The seconds of each round, by contender, and our steps of the last round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def against(self, peers: Sequence[str]) -> tuple[float, list[float]]:
        """Return our speed over the fastest peer's, by the medians and round by round; see `ratios`."""
        return ratios(self.seconds[OURS], {name: self.seconds[name] for name in peers})


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
        if _PACKAGES.exists():
            self.contenders += [
                Contender(name=name, run=self._limit(name.lower()), is_peer=False, any_trigger=True, variants=(False,))
                for name in LIMITS
            ]

    def of(self, load: Load) -> list[Contender]:
        takes_limits = load.is_bulk and not load.best
        return [
            contender
            for contender in self.contenders
            if load.upsert in contender.variants and (takes_limits or not contender.any_trigger)
        ]

    def once(self, contender: Contender, load: Load) -> Measured:
        """Run a contender over a load and check its tables.

        Raises:
            WrongResult: its tables do not match the input.
        """
        self._homes += 1
        home = self.root / f"home-{self._homes}"
        measured = contender.run(load.folder, home, load.a_trigger(contender.name), load.upsert)
        load.expected.check(f"{contender.name}, {load.label}", measured.kept, measured.totals)
        return measured

    def measure(self, load: Load, rounds: int) -> Outcome:
        """Run all contenders in turns; return their seconds, and our steps."""
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
            if files is None:
                raise ValueError("a peer takes a number of files a trigger")
            job = bench_peer.Job(session=self.engine.session, inbox=inbox, home=home, files=files, upsert=upsert)
            return bench_peer.measure(start, job)

        return run

    def _limit(self, name: str) -> Run:
        def run(inbox: Path, home: Path, files: int | None, upsert: bool) -> Measured:
            found = asked(name, _LIMIT_JOB, [name, str(inbox), str(home), str(_WARM_BULK)], _PACKAGES)
            totals = {key: (count, total) for key, (count, total) in found["totals"].items()}
            seconds = found["seconds"]
            return Measured(whole_seconds=seconds, span_seconds=seconds, triggers=1, kept=found["kept"], totals=totals)

        return run


def table_of(load: Load, outcome: Outcome, peers: Sequence[str]) -> Table:
    """Return the figures of a load; a speed above 1 is faster than the fastest peer."""
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
    return table


def steps_line(load: Load, steps: Mapping[str, float]) -> str:
    """Return a line with the milliseconds for a file of each of our steps."""
    parts = (f"{step} {seconds / load.files * 1000:.1f}" for step, seconds in steps.items())
    return f"{OURS}, ms a file: {', '.join(parts)}"


def at_its_best(bench: Benchmark, load: Load) -> Load:
    """Find each peer's best number of files in a trigger, with one run for each number; return the load with them."""
    best: dict[str, int | None] = {OURS: None}
    for contender in bench.of(load):
        if contender.name == OURS or contender.any_trigger:
            continue
        seconds: dict[int, float] = {}
        for files in PEER_TRIGGERS:
            trial = replace(load, best={contender.name: files})
            seconds[files] = load.seconds(bench.once(contender, trial))
            bench.console.print(f"[dim]{contender.name}, {files} files a trigger: {seconds[files]:.2f} s[/dim]")
        best[contender.name] = min(seconds, key=seconds.__getitem__)
    return replace(load, best=best)


def loads(folder: Path, count: int, *, is_bulk: bool, upserts: Sequence[bool]) -> Iterator[Load]:
    """Write the input, and yield a load over it for each value of `upserts`; none for no files."""
    if count:
        expected, _ = write_files(folder, count, seed=11 + is_bulk)
        for upsert in upserts:
            yield Load(folder=folder, files=count, expected=expected, is_bulk=is_bulk, upsert=upsert)


def started(master: str, conf: Sequence[str], root: Path, console: Console) -> SparkEngine:
    """Print the settings of the engine that all contenders share, and return it."""
    engine = SparkEngine(master, dict(item.split("=", 1) for item in conf), root / "spark")
    console.print(f"master {master}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    for key, value in sorted({**engine.settings.of_session(), **delta_settings()}.items()):
        if "jars" not in key:
            console.print(f"  {key} = {value}", highlight=False)
    return engine


def measure_one(
    console: Console,
    *,
    quick: bool,
    root: Path,
    files: int,
    rounds: int,
    all_peers: bool,
    master: str,
    conf: Sequence[str],
) -> Figures:
    """Take files one at a time.

    Args:
        files: number of files in each run.
        rounds: turns of each contender.
        all_peers: also the peers that do less than the job.
        conf: `KEY=VALUE`, Spark settings for all.

    Raises:
        WrongResult: a contender miscounted.
    """  # fmt: skip
    bench = Benchmark(root, started(master, conf, root, console), console, all_peers=all_peers)
    return _one_at_a_time(bench, files, rounds, upsert=False)


def measure_one_upsert(
    console: Console,
    *,
    quick: bool,
    root: Path,
    files: int,
    rounds: int,
    all_peers: bool,
    master: str,
    conf: Sequence[str],
) -> Figures:
    """Take files one at a time, with the totals in an upsert table.

    Takes the arguments and raises the errors of `measure_one`.
    """  # fmt: skip
    bench = Benchmark(root, started(master, conf, root, console), console, all_peers=all_peers)
    return _one_at_a_time(bench, files, rounds, upsert=True)


def _one_at_a_time(bench: Benchmark, files: int, rounds: int, *, upsert: bool) -> Figures:
    warm = loads(bench.root / "warm", min(_WARM_FILES, files), is_bulk=False, upserts=(upsert,))
    return _measure(bench, rounds, warm, loads(bench.root / "measured", files, is_bulk=False, upserts=(upsert,)))


def measure_bulk(
    console: Console,
    *,
    quick: bool,
    root: Path,
    bulk_files: int,
    rounds: int,
    all_peers: bool,
    master: str,
    conf: Sequence[str],
) -> Figures:
    """Take files in bulk: all contenders with the same files in a trigger, then each with its best number.

    Takes the arguments and raises the errors of `measure_one`.
    """  # fmt: skip
    engine = started(master, conf, root, console)
    bench = Benchmark(root, engine, console, all_peers=all_peers)
    if not _PACKAGES.exists():
        console.print("[yellow]Polars and DuckDB are not installed[/yellow]: make bench-limit-setup")
    both = (False, True)
    return _measure(bench, rounds, loads(root / "warm", min(_WARM_BULK, bulk_files), is_bulk=True, upserts=both),
                    loads(root / "measured", bulk_files, is_bulk=True, upserts=both))  # fmt: skip


def _measure(bench: Benchmark, rounds: int, warm: Iterator[Load], measured: Iterator[Load]) -> Figures:
    results: Figures = {}
    try:
        for load in warm:
            bench.measure(load, 1)
        for load in measured:
            results.update(_measured(bench, load, rounds))
            if load.is_bulk and not load.upsert:
                results.update(_measured(bench, at_its_best(bench, load), rounds))
    finally:
        bench.engine.stop()
    return results


def _measured(bench: Benchmark, load: Load, rounds: int) -> Figures:
    outcome = bench.measure(load, rounds)
    peers = [contender.name for contender in bench.of(load) if contender.is_peer]
    bench.console.print(table_of(load, outcome, peers))
    bench.console.print(steps_line(load, outcome.steps), highlight=False)
    return entries(load, outcome, peers)


def entries(load: Load, outcome: Outcome, peers: Sequence[str]) -> Figures:
    """Return a load's part of the results: the ratio, files a second by contender, our steps in ms a file."""
    ratio_key = f"{load.prefix}_{'ratio' if load.is_bulk else 'speedup'}{load.suffix}"
    ratio, by_round = outcome.against(peers)
    results = {**spread(ratio_key, by_round), ratio_key: round(ratio, 3)}
    for limit, key in LIMITS.items():
        if limit in outcome.seconds:
            ratio, by_round = outcome.against([limit])
            results |= {**spread(key, by_round), key: round(ratio, 3)}
    for name, seconds in outcome.seconds.items():
        who = "_".join(name.lower().strip("()").replace(",", "").split())
        rates = [load.files / each for each in seconds]
        results.update(spread(f"{load.prefix}_files_per_second{load.suffix}_{who}", rates, digits=2))
        if load.best and (files := load.best[name]):
            results[f"{load.prefix}_files_a_trigger{load.suffix}_{who}"] = files
    for step, seconds in outcome.steps.items():
        results[f"{load.prefix}{load.suffix}_step_ms_{step.replace(' ', '_')}"] = round(seconds / load.files * 1000, 2)
    return results
