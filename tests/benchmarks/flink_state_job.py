"""The job of part `state` in Flink SQL as a Flink engineer would write it; run by `bench_state` in its own environment.

`python flink_state_job.py INBOX LATER HOME CORES` reads the files of INBOX, which give the state its keys. Then it
moves the files of LATER to INBOX one at a time, each when the rows of the previous file are committed. It prints one
line of JSON: the seconds of each file of LATER, from its move until its rows are committed, in the order of their
names. A `print` sink prints the totals that changed, `totals> +U[k000000001, 2, 2.0]`.

This module needs only PyFlink and the standard library. The choices are in Flink's favour: RocksDB with incremental
checkpoints, which begin every 100 ms; a folder that is listed every 20 ms; objects reused; no mini-batches, which would
delay rows. The rows kept go to CSV files, which need no jar."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from flink_job import COLUMNS, table_environment

SETTINGS = {
    "execution.runtime-mode": "streaming",
    "execution.checkpointing.interval": "100 ms",
    "execution.checkpointing.min-pause": "0 ms",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": "true",
    "state.backend.type": "rocksdb",
    "pipeline.object-reuse": "true",
    "taskmanager.memory.managed.size": "512m",
    "table.optimizer.reuse-optimize-block-with-digest-enabled": "true",  # otherwise each statement reads the folder
}
_LIMIT = 50
_LOOK_SECONDS = 0.005
_PATIENCE_SECONDS = 900


class Committed:
    """The rows in the files that a sink committed; names of uncommitted files begin with a dot or an underscore."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, int] = {}

    def count(self) -> int:
        for entry in os.scandir(self._folder) if self._folder.is_dir() else ():
            if not entry.name.startswith((".", "_")) and entry.name not in self._rows:
                self._rows[entry.name] = Path(entry.path).read_bytes().count(b"\n")
        return sum(self._rows.values())

    def wait(self, rows: int) -> None:
        """Wait until the number of committed rows is `rows`.

        Raises:
            RuntimeError: there are more, or fewer at the deadline.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        while (found := self.count()) != rows:
            if found > rows or time.monotonic() > until:
                raise RuntimeError(f"{found} rows are committed, expected {rows}")
            time.sleep(_LOOK_SECONDS)


def main(inbox: Path, later: Path, home: Path, cores: int) -> list[float]:
    """Run the job and return the seconds of each file of `later`."""
    client = submit(table_environment(SETTINGS, home, cores), inbox, home)
    committed, expected, seconds = Committed(home / "large"), kept_in(inbox), []
    committed.wait(expected)
    for path in sorted(later.iterdir()):
        expected += kept(path)
        began = time.monotonic()
        path.rename(inbox / path.name)
        committed.wait(expected)
        seconds.append(time.monotonic() - began)
    client.cancel().result()
    return seconds


def submit(environment: Any, inbox: Path, home: Path) -> Any:
    """Start the job, which runs until it is cancelled; return its client."""
    folder = "'connector' = 'filesystem', 'format' = 'csv', 'path' = '{}'"
    source, sink = folder.format(inbox.as_uri()), folder.format((home / "large").as_uri())
    for statement in (
        f"CREATE TABLE rows_in ({COLUMNS}) WITH ({source}, 'source.monitor-interval' = '20 ms')",
        f"CREATE TABLE large_rows ({COLUMNS}) WITH ({sink})",
        "CREATE TABLE totals (k STRING, n BIGINT, total DOUBLE) WITH"
        " ('connector' = 'print', 'print-identifier' = 'totals')",
        f"CREATE VIEW judged AS SELECT *, amount > {_LIMIT} AS is_large FROM rows_in",  # noqa: S608 - our own names
        "CREATE VIEW sums AS SELECT k, COUNT(*) AS n, SUM(amount) AS total FROM judged GROUP BY k",
    ):
        environment.execute_sql(statement)
    statements = environment.create_statement_set()
    statements.add_insert_sql("INSERT INTO large_rows SELECT id, k, amount, note FROM judged WHERE is_large")
    statements.add_insert_sql("INSERT INTO totals SELECT * FROM sums WHERE n > 1")
    return statements.execute().get_job_client()


def kept_in(folder: Path) -> int:
    return sum(map(kept, folder.iterdir()))


def kept(path: Path) -> int:
    """Return the number of rows of a file that the sink must keep."""
    with path.open() as file:
        return sum(1 for line in file if float(line.split(",")[2]) > _LIMIT)


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:4]]
    timed = main(*folders, cores=int(sys.argv[4]))
    sys.stdout.flush()
    sys.stdout.write("\n" + json.dumps(timed) + "\n")
    sys.stdout.flush()
    os._exit(0)  # do not wait for the cluster's threads
