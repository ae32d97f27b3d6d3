"""The flows of figure 7: the shipped applications and chains of functors, each with an endless supply of files."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_lanes import LONG_AGO, Content

import drainmark as dm
from drainmark import F
from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.graph.application import Application, load_application
from drainmark.jobs.testing.bank import bank_files
from drainmark.jobs.testing.market import generate_market
from drainmark.jobs.testing.radio import generate_radio
from drainmark.jobs.testing.syslog import generate_syslog
from drainmark.orchestration.workplace.workplace import Opened, open_application

FILES = 8
"""Number of different files of a flow; after these they repeat."""
CHANNELS = 16
SYMBOLS = 1000
WORDS = ("the", "of", "to", "and", "in", "is", "that", "for", "on", "we", "you", "it", "with", "be", "this", "are")
FOLDERS = "14567"
TINY = 100

Write = Callable[[Path, int, int], int]
"""Takes a path, a number (the seed) and the count of records; writes the file, returns the rows that a reader finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An application and its input.

    Attributes:
        application: returns the application as declared.
        inputs: names of the sources that read the inbox; empty if there is only one source.
        size: records of a file, chosen so that it has about half a megabyte.
        path: takes the number of a file; returns its path below the inbox.
        starts: the least number of files in a window, so that every source has one.
        is_by_file: every file is a state; the period does not matter.
        beside: puts files into the inbox that are read in addition to the windows.
    """

    name: str
    application: Callable[[], Application]
    write: Write
    size: int
    path: Callable[[int], str]
    inputs: tuple[str, ...] = ()
    starts: int = 1
    is_by_file: bool = False
    beside: Callable[[Path], None] = lambda inbox: None

    def content(self, folder: Path) -> Content:
        """Write the files."""
        folder.mkdir(parents=True)
        files = [folder / str(number) for number in range(FILES)]
        (rows,) = {self.write(path, number, self.size) for number, path in enumerate(files)}
        tiny_rows = self.write(folder / "tiny", FILES, TINY)
        for path in folder.iterdir():
            os.utime(path, (LONG_AGO, LONG_AGO))
        return Content(files=files, rows=rows, tiny=folder / "tiny", tiny_rows=tiny_rows, name=self.path)

    def at_period(self, seconds: float) -> Callable[[Path], Opened]:
        """Return a function that opens the application on an inbox, with a state every `seconds`."""
        declared = self.application()
        application = declared if self.is_by_file else periodic(declared, seconds)

        def opened(inbox: Path) -> Opened:
            self.beside(inbox)
            inputs = [f"{name}={inbox}" for name in self.inputs] or [str(inbox)]
            return open_application(application, inputs=inputs)

        return opened


def periodic(application: Application, seconds: float) -> Application:
    """Return the application with regions that take a state every `seconds`."""
    period = dt.timedelta(seconds=seconds)

    def changed(operator: Any) -> Any:
        if operator.consistent is None:
            return operator
        return replace(
            operator, consistent=replace(operator.consistent, trigger=TriggerKind.PERIODIC.value, period=period)
        )

    return replace(application, operators=tuple(map(changed, application.operators)))


# --- files --------------------------------------------------------------------------------------------------------


def syslog(path: Path, number: int, size: int) -> int:
    (file,) = generate_syslog(seed=number, hosts=(f"host{number}",), files_per_host=1, lines_per_file=size)
    path.write_text("".join(f"{line}\n" for line in file.lines))
    return len(file.lines)


def market(path: Path, number: int, size: int) -> int:
    (file,) = generate_market(seed=number, files=1, records_per_file=size, symbols=SYMBOLS)
    path.write_text(file.text)
    return len(file.lines)


def radio(path: Path, number: int, size: int) -> int:
    (file,) = generate_radio(seed=number, channels=1, files_per_channel=1, samples_per_file=size)
    path.write_bytes(file.content)
    return 1


def mail(path: Path, number: int, size: int) -> int:
    chance = np.random.default_rng(number)
    rare = np.char.add("w", chance.integers(0, 20_000, size // 10).astype(str))
    path.write_text(" ".join([*chance.choice(WORDS, size), *letters(rare)]))
    return 1


def letters(words: Any) -> list[str]:
    """Replace digits by letters, since a word consists of letters."""
    spelt = str.maketrans("0123456789", "abcdefghij")
    return [str(word).translate(spelt) for word in words]


def payments(path: Path, number: int, size: int) -> int:
    *_, (_, text, _) = bank_files(number + 1, rows=size)
    path.write_text(text)
    return text.count("\n")


def warned(inbox: Path) -> None:
    """Write the files of warnings, which the first window reads."""
    for number, _, posts in bank_files(FILES, rows=1):
        path = inbox / f"{number}.jsonl"
        path.write_text(posts)
        os.utime(path, (LONG_AGO, LONG_AGO))


def events(path: Path, number: int, size: int) -> int:
    chance = np.random.default_rng(number)
    table = pa.table({"key": chance.integers(0, 1000, size), "x": chance.random(size)})
    pq.write_table(table, path)
    return size


# --- applications -------------------------------------------------------------------------------------------------


def shipped(name: str, **facts: Any) -> Flow:
    return Flow(name=name, application=lambda: load_application(name), **facts)


_SHIPPED = (
    shipped("log_watch", write=syslog, size=6_000, path=lambda n: f"{n:07d}.log"),
    shipped("enron_fs", write=mail, size=90_000, path=lambda n: f"{FOLDERS[n % 5]}/{n:07d}.txt",
            inputs=("first", "fourth", "fifth", "sixth", "last"), starts=5),
    shipped("enron_ds", write=mail, size=90_000, path=lambda n: f"{n:07d}.txt", is_by_file=True),
    shipped("vwap", write=market, size=6_000, path=lambda n: f"{n:07d}.csv"),
    shipped("lois", write=radio, size=65_000, path=lambda n: f"{n // CHANNELS:07d}/antenna{n % CHANNELS}/{n}.c64"),
    shipped("bank_alerts", write=payments, size=6_000, path=lambda n: f"{n:07d}.csv",
            inputs=("transactions", "warnings"), beside=warned),
)  # fmt: skip

APPLICATIONS: Mapping[str, Flow] = {flow.name: flow for flow in _SHIPPED}


def functor(rows: Any) -> Any:
    """Compute an expression for each row that Spark cannot optimise away."""
    return rows.withColumn("x", F.sin(F.col("x")) + F.col("key"))


def chains_of_functors(chains: int, length: int) -> Flow:
    """Return a flow that deals rows to chains of functors and joins them in a sink that drops all rows (V190, V191)."""
    return Flow(
        name=f"stateless_{chains}x{length}",
        application=lambda: chained(chains, length),
        write=events,
        size=100_000,
        path=lambda n: f"{n:07d}.parquet",
    )


def chained(chains: int, length: int) -> Application:
    with dm.application("stateless") as declared:

        @dm.consistent(trigger="operator-driven", group_timeout=600.0)
        @dm.source(dm.DirectoryScan(path="in", pattern="*.parquet", format="parquet", schema="key bigint, x double"))
        def read(scanned: Any) -> Any:
            return scanned

        ends = []
        for chain in range(chains):
            stream = dm.filter(dealt(chain, chains), name=f"turn{chain}", inputs=[read])
            for place in range(length):
                stream = dm.functor(functor, name=f"f{chain}_{place:02d}", inputs=[stream])
            ends.append(stream)
        joined = dm.union(*ends, name="joined") if chains > 1 else ends[0]
        dropped = dm.filter(lambda rows: F.col("x").isNull(), name="dropped", inputs=[joined])
        dm.sink(dropped, dm.DeltaAppend("nothing"))
    return dm.build_application(declared)


def dealt(chain: int, chains: int) -> Callable[[Any], Any]:
    """Return the predicate of the rows of one chain."""
    return lambda rows: F.col("key") % chains == chain
