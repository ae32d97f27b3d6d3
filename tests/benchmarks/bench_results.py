"""The results of a benchmark: one flat map of figures in `bench-results.json`, merged part by part.

All functions are pure, except the two that read and write the file. `HEADLINES` lists the figures of a whole run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "bench-results.json"
MACHINE = "machine"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure that every whole run should have.

    Attributes:
        key: its name in the results.
        part: the part that measures it.
        title: its description for people.
        unit: "x" for a ratio, "share" for a fraction, or a unit such as "s".
        aim: the value it should reach; None for a figure that only helps to judge another one.
        is_ceiling: the aim is the largest acceptable value; otherwise it is the smallest.
        span: the meaning of `<key>_low` and `<key>_high`: extreme rounds, or a confidence interval.
        is_owed: its part failed if the figure is missing; False if it needs a peer that may not be installed.
        steps: beginning of the keys of the figures that say where our time goes; the rest of a key names a step.
        tried: what was done to reach the aim, and with which result.
    """

    key: str
    part: str
    title: str
    unit: str
    aim: float | None
    is_ceiling: bool = False
    span: str = "rounds"
    is_owed: bool = True
    steps: str = ""
    tried: str = ""

    def is_met(self, value: float) -> bool | None:
        """Say whether a value reaches the aim; None if there is no aim."""
        if self.aim is None:
            return None
        return value <= self.aim if self.is_ceiling else value >= self.aim

    @property
    def aim_text(self) -> str:
        if self.aim is None:
            return "no aim"
        return f"{'at most' if self.is_ceiling else 'at least'} {said(self.aim, self.unit)}"


_ONE_TRIED = (
    "an engine without a JVM, Sail (pysail 0.7.2): a file takes a ninth of the seconds and a sixth of the CPU, but "
    "some results differ without an error; a planned frame that is executed again: a quarter less CPU, but a stale "
    "file would be a wrong result without an error; fewer rules of the optimiser, no code for whole stages, no "
    "adaptive execution, short texts of plans: no difference"
)

_BULK_TRIED = (
    "places with delta encoding, dictionaries for ids, more threads that read a file, smaller blocks of CSV: about 1 % "
    "or less each; of the CPU seconds about a third are those of the JVM's compiler"
)
_CHANGES_TRIED = (
    "numpy and Arrow in place of SQL: half of the CPU; one table for the state and the sink's history: half of the "
    "Spark jobs; a flush that waits broke a promise, and a broadcast of the known keys has no bound"
)
_VISIBLE_TRIED = (
    "rows sorted by key in row groups of 4096, of which a change reads those that may have its keys: 4.5 x before; "
    "these groups read together: 1.6 x before; more rows a group: slower; two files share the range of keys, and both "
    "are searched"
)
_DRIVER_TRIED = (
    "groups in proportion to the cores of a cluster, which this machine has not: docs/benchmarks.md reckons them: "
    "each group costs the driver 0.45 s of CPU, each second of a group 18 ms, each task 5 ms; such groups by default: "
    "operators that have a group in one process would fail"
)

HEADLINES = (
    Headline("one_at_a_time_speedup", "one", "One file at a time, against the fastest Spark peer", "x", 8.0,
             steps="one_at_a_time_step_ms_", tried=_ONE_TRIED),
    Headline("bulk_ratio", "bulk", "Bulk, as many files a trigger as the fastest Spark peer", "x", 3.0,
             steps="bulk_step_ms_", tried=_BULK_TRIED),
    Headline("bulk_to_limit", "bulk", "Bulk, our files a second over those of Polars", "x", 0.5, is_owed=False,
             steps="bulk_step_ms_", tried=_BULK_TRIED),
    Headline("bulk_ratio_best", "bulk", "Bulk, each side at its best number of files a trigger", "x", 1.0,
             steps="bulk_best_step_ms_"),
    Headline("upsert_bulk_ratio", "bulk", "Bulk into an upsert table, against the fastest Spark peer", "x", 1.0,
             steps="upsert_bulk_step_ms_"),
    Headline("changes_scd1_ratio", "changes", "Changes as newest rows, against `foreachBatch` and MERGE", "x", 3.0,
             steps="changes_scd1_step_ms_", tried=_CHANGES_TRIED),
    Headline("changes_scd2_ratio", "changes", "Changes as a history, against `foreachBatch` and MERGE", "x", 3.0,
             steps="changes_scd2_step_ms_", tried=_CHANGES_TRIED),
    Headline("bulk_ratio_flink", "flink", "Bulk, against Flink SQL without its start-up", "x", 1.5),
    Headline("kept_512mb_whole_nonblocking", "checkpoints", "Speed kept, 512 MB written each state, non-blocking",
             "share", 0.94, span="95 %"),
    Headline("kept_512mb_whole_blocking", "checkpoints", "Speed kept, 512 MB written each state, blocking", "share",
             None, span="95 %"),
    Headline("kept_512mb_incremental_nonblocking", "checkpoints",
             "Speed kept, 512 MB of state, its changes written, non-blocking", "share", 0.99, span="95 %"),
    Headline("loss_apps_worst", "figure7", "Lost to states, worst of five applications", "share", 0.01, True, "95 %"),
    Headline("loss_stateless_worst", "figure7", "Lost to states, worst of eight stateless graphs", "share", 0.01, True,
             "95 %"),
    Headline("landing_to_visible_p50_s", "landing", "A file lands, its rows are visible: median", "s", 2.0, True),
    Headline("trigger_cost_growth", "growth", "Cost of a trigger after 100 000, over the first", "x", 1.1, True),
    Headline("idle_tick_1m_files_s", "listing", "A tick over 1 000 000 known files", "s", 1.0, True),
    Headline("idle_tick_1m_others_s", "listing_million", "The same in one folder or a bucket, the slower", "s", 1.0,
             True),
    Headline("state_cost_growth", "state", "A file's cost with 10 000 000 keys, over 1000", "x", 1.5, True,
             steps="state_step_ms_"),
    Headline("state_cost_growth_visible", "state", "The same, merged on read, visible at once", "x", 1.5, True,
             steps="state_visible_step_ms_", tried=_VISIBLE_TRIED),
    Headline("state_cost_vs_streaming", "state", "The same, 5 000 000 keys: the Spark peer with MERGE", "x", 5.0),
    Headline("state_cost_vs_flink", "state", "5 000 000 keys: over Flink with RocksDB", "x", None, is_owed=False),
    Headline("state_bytes_per_changed_byte", "state", "State written per byte changed", "x", 3.0, True),
    Headline("bytes_written_per_changed_byte_on_read", "state", "The same, with a table merged on read", "x", 10.0,
             True),
    Headline("recovery_growth", "state", "A claim to the first state, 10 000 000 keys over 1000", "x", 2.0, True),
    Headline("rewind_growth_on_read", "state", "A rewind across 55 files, so merged, 10 000 000 keys over 1000", "x",
             2.0, True),
    Headline("recovery_ratio", "recovery", "Kill to new rows, over the Spark peer; every JVM dies", "x", 0.5, True),
    Headline("recovery_ratio_warm", "recovery", "The same where our Spark outlives the run", "x", None),
    Headline("rewind_1000_ids_s", "rewind", "Rewind across 1000 ids of an append table", "s", 2.0, True),
    Headline("driver_bytes_per_input_byte", "driver", "Bytes of a large group through the driver", "share", 0.01, True),
    Headline("driver_cpu_seconds_per_gb", "driver", "The driver's CPU a gigabyte", "s", 1.0, True),
    Headline("driver_limit_cores", "driver", "Busy cores that one driver core feeds", "cores", 1000.0,
             tried=_DRIVER_TRIED),
    Headline("driver_memory_growth_mb", "driver_memory", "A run's memory, a group of 5 GB over a line", "MB", 300.0,
             True),
    Headline("refcount_overhead", "counting", "Reference counting, on batches of 10 000 rows", "share", 0.01, True),
    Headline("unaligned_duration_ratio", "stages", "Unaligned state, 0.1 ms of sleep a row over none", "x", 1.2, True),
    Headline("aligned_duration_ratio", "stages", "Aligned state, 0.1 ms of sleep a row over none", "x", None),
    Headline("stages_duration_unaligned_100us", "stages", "Seconds of an unaligned state, 0.1 ms a row", "s", None),
    Headline("unaligned_seconds_over_flink", "stages", "The same seconds, over Flink's", "x", 1.0, True,
             is_owed=False),
    Headline("unaligned_loss", "stages", "Throughput lost, unaligned against aligned", "share", 0.02, True),
    Headline("persist_over_drain_32mb", "persisting", "Writing 32 MB in flight, over draining them", "x", None),
    Headline("stage_recovery_ratio", "stage_recovery", "A stage's restart, over a reset of its region", "x", 1.0, True),
)  # fmt: skip


MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"


def judged(line: Headline, results: Mapping[str, Any]) -> str:
    """Return the word for a headline: `met`, `missed` or `not measured`; "" if it is measured and has no aim."""
    if line.key not in results:
        return NOT_MEASURED
    return {True: MET, False: MISSED, None: ""}[line.is_met(results[line.key])]


def verdict(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that end a run: how many aims are met; then each that is missed, and each not measured."""
    words = {line: judged(line, results) for line in HEADLINES if line.aim is not None}
    yield ", ".join(f"{list(words.values()).count(word)} {word}" for word in (MET, MISSED, NOT_MEASURED))
    for line, word in words.items():
        if word == MISSED:
            yield f"{word}: {line.key}: {said(results[line.key], line.unit)}, the aim is {line.aim_text}: {line.title}"
            yield f"    where the time goes: {shares(line, results) or 'the part does not measure steps'}"
            yield f"    what was tried: {line.tried or 'nothing that is written down'}"
    for line, word in words.items():
        if word == NOT_MEASURED:
            yield f"{word}: {line.key}, by the part `{line.part}`; the aim is {line.aim_text}"


def steps_of(prefix: str, results: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of steps whose keys begin so, by the names of the steps; what overlaps is not below zero."""
    found = {key.removeprefix(prefix): value for key, value in results.items() if prefix and key.startswith(prefix)}
    return {name.replace("_", " "): max(value, 0.0) for name, value in found.items()}


def shares(line: Headline, results: Mapping[str, Any]) -> str:
    """Return the steps behind a figure in percent, the largest first; "" if its part measures none."""
    steps = steps_of(line.steps, results)
    whole = sum(steps.values())
    ordered = sorted(steps.items(), key=lambda step: -step[1])
    return ", ".join(f"{name} {value / whole:.0%}" for name, value in ordered if value) if whole else ""


def aim_of(key: str) -> float | None:
    """Return the aim of a headline figure."""
    return next(line.aim for line in HEADLINES if line.key == key)


def said(value: float, unit: str) -> str:
    """Return a figure as text with its unit."""
    if unit == "share":
        return f"{value * 100:.1f} %"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def spread(key: str, rounds: Sequence[float], *, digits: int = 3) -> Figures:
    """Return a figure's median, and its smallest and largest round as `<key>_low` and `<key>_high`."""
    median = statistics.median(rounds)
    named = ((key, median), (f"{key}_low", min(rounds)), (f"{key}_high", max(rounds)))
    return {name: round(value, digits) for name, value in named}


def ratios(ours: Sequence[float], theirs: Mapping[str, Sequence[float]]) -> tuple[float, list[float]]:
    """Return how much faster we are than the fastest peer, from seconds: by the medians, and round by round.

    Above 1, we are faster. The fastest peer is the peer with the lowest median. A round is compared with the same round
    of that peer, since both had the same load of the machine.
    """
    fastest = min(theirs.values(), key=statistics.median)
    whole = statistics.median(fastest) / statistics.median(ours)
    return whole, [their / our for our, their in zip(ours, fastest, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRun:
    """The outcome of a part.

    Attributes:
        figures: None if it failed.
        load_before, load_after: load averages over a minute.
        reason: why it failed or was passed over; None if it was measured.
        quick: it had small sizes, which only show that it runs.
    """

    name: str
    figures: Mapping[str, float] | None
    load_before: float
    load_after: float
    seconds: float
    reason: str | None = None
    quick: bool = False


def merged(before: Mapping[str, Any], run: PartRun, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results after a part: its earlier figures are removed; those of other parts are kept."""
    parts = dict(before.get(MACHINE, {}).get("parts", {}))
    stale = set(parts.get(run.name, {}).get("figures", ()))
    figures = {key: value for key, value in before.items() if key != MACHINE and key not in stale}
    figures.update(run.figures or {})
    parts[run.name] = {
        "load_before": round(run.load_before, 2),
        "load_after": round(run.load_after, 2),
        "seconds": round(run.seconds, 1),
        "reason": run.reason,
        "quick": run.quick,
        "figures": sorted(run.figures or ()),
    }
    return {**figures, MACHINE: {**before.get(MACHINE, {}), **machine, "parts": parts}}


def missing(results: Mapping[str, Any], parts: Sequence[str]) -> list[str]:
    """Return the headline figures that these parts owe and the results lack."""
    owed = [line.key for line in HEADLINES if line.is_owed and line.part in parts]
    return [key for key in owed if key not in results]


def load(path: Path) -> dict[str, Any]:
    """Return the results of earlier runs; an empty map if the file is missing or is not a JSON object."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def save(path: Path, results: Mapping[str, Any]) -> None:
    """Write the results: the figures sorted by name, the machine last."""
    order: Callable[[str], tuple[bool, str]] = lambda key: (key == MACHINE, key)  # noqa: E731
    path.write_text(json.dumps({key: results[key] for key in sorted(results, key=order)}, indent=2) + "\n")
