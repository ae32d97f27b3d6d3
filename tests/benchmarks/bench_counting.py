"""Part `counting`: the cost of reference counting for batches of 10 000 rows (C27), ours and that of streamz.

The same batches go through the same nodes with and without counters, batch by batch in turns in one process, so that
both ways meet the same load. `refcount_overhead` is the share of the time that counting adds. `refcount_seconds` is the
extra time of one datum if the nodes have nothing to do. The share of a round is the median over its sets of eight
batches, since one pause by the garbage collector or by another process is longer than all counting. streamz runs in a
process with packages of its own (`make bench-streamz-setup`); without it, there are only our figures.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import counting_job
from bench_input import WrongResult
from bench_parts import asked
from bench_results import Figures, spread
from rich.console import Console

from drainmark.jobs.streams import Acknowledged, Stream

PACKAGES = Path(__file__).parents[2] / ".bench-streamz"
PEER = Path(__file__).with_name("counting_peer.py")
_SIZES = {False: (400, 9), True: (16, 2)}
"""Batches and rounds, by `quick`; the number of batches is a multiple of eight."""


def measure(console: Console, *, quick: bool, root: Path) -> Figures:
    """Measure ours, and streamz if it is installed.

    Raises:
        WrongResult: rows were lost, or positions were not acknowledged.
    """
    batches, rounds = _SIZES[quick]
    ours = _ours(batches, rounds)
    figures = {
        **spread("refcount_overhead", ours["shares"], digits=5),
        "refcount_seconds": round(ours["seconds"], 9),
    }
    console.print(f"counting costs {figures['refcount_overhead'] * 100:.2f} % of a batch of 10 000 rows")
    if not PACKAGES.exists():
        console.print("[yellow]streamz is not installed[/yellow]: make bench-streamz-setup")
        return figures
    theirs = _streamz(batches, rounds)
    if abs(theirs["total"] - ours["total"]) > 1e-6 * abs(ours["total"]):
        raise WrongResult(f"streamz added up {theirs['total']}, we {ours['total']}")
    figures |= {
        **spread("refcount_overhead_streamz", theirs["shares"], digits=5),
        "refcount_seconds_streamz": round(theirs["seconds"], 9),
    }
    console.print(f"streamz: {statistics.median(theirs['shares']) * 100:.2f} %")
    return figures


def _ours(batches: int, rounds: int) -> dict[str, Any]:
    data = counting_job.batches(batches)
    totals, plain_totals = counting_job.Totals(), counting_job.Totals()
    acknowledged, beside = Acknowledged(), Acknowledged()

    def emitting(source: Stream, positions: Acknowledged) -> counting_job.Emit:
        return lambda datum: source.emit(datum, metadata=[{"ref": positions.begin(None)}])

    source, plain, light, light_plain = (Stream() for _ in range(4))
    counting_job.build(source, totals)
    counting_job.build(plain, plain_totals)
    shares = counting_job.shares(emitting(source, acknowledged), plain.emit, data, rounds)
    counting_job.build_plain(light)
    counting_job.build_plain(light_plain)
    seconds = counting_job.seconds_a_datum(emitting(light, beside), light_plain.emit)
    if acknowledged.pending or beside.pending:
        raise WrongResult(f"{acknowledged.pending + beside.pending} positions were never acknowledged")
    if totals.rows != plain_totals.rows or not totals.rows:
        raise WrongResult(f"{totals.rows} rows were counted, {plain_totals.rows} were not")
    return {"shares": shares, "seconds": seconds, "total": totals.total}


def _streamz(batches: int, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = asked("streamz", PEER, [str(batches), str(rounds)], PACKAGES)
    if found["done"] != batches * (rounds + 1) or found["rows"] != found["plain_rows"]:
        raise WrongResult(f"streamz: {found['done']} data are done, {found['rows']} rows")
    return found
