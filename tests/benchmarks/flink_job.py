"""The benchmark's job in Flink SQL as a Flink engineer would write it; run by `bench_flink` in its own environment.

`python flink_job.py INBOX WARM_INBOX HOME CORES` runs the job over WARM_INBOX, then over INBOX, in one JVM, and prints
one line of JSON with the seconds of each. This module needs only PyFlink and the standard library. The job itself runs
no Python, only the JVM.

The choices are in Flink's favour: a bounded folder in streaming mode, checkpoints exactly-once every 2 s (the file sink
commits with them), mini-batches and two-phase aggregation for the totals, objects reused, as many slots as cores. Both
statements share one view that is computed once: with two plain statements the planner pushes filter and projection into
two scans, and the folder is read twice (52 files/s instead of 250). The rows kept go to CSV files, since the
distribution has this format; Parquet needs another jar. The totals go to the `print` sink, one line for each change;
the caller reads them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLUMNS = "id BIGINT, k STRING, amount DOUBLE, note STRING"
NAMES = "id, k, amount, note"
SETTINGS = {
    "execution.runtime-mode": "streaming",
    "execution.checkpointing.interval": "2 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "pipeline.object-reuse": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "table.optimizer.reuse-optimize-block-with-digest-enabled": "true",  # otherwise each statement reads the folder
}


def main(inbox: Path, warm: Path, home: Path, cores: int) -> dict[str, float]:
    """Run both jobs; return the seconds before the first could be submitted, and of each job from submission to end.

    `net_seconds` is the job manager's own figure for the second job: without planning and without the cluster's start.
    """
    began = time.monotonic()
    environment = table_environment(SETTINGS, home, cores)
    started = time.monotonic()
    warmed = run(environment, "warm", warm, home / "warm")
    measured = run(environment, "measured", inbox, home / "measured")
    return {
        "start_seconds": started - began,
        "warm_seconds": warmed["whole_seconds"],
        **measured,
    }


def table_environment(settings: Mapping[str, str], home: Path, cores: int) -> Any:
    """Return a streaming environment on all cores, with checkpoints below a folder."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    own = {"parallelism.default": str(cores), "execution.checkpointing.dir": (home / "checkpoints").as_uri()}
    for key, value in {**settings, **own}.items():
        configuration.set_string(key, value)
    chosen = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    return TableEnvironment.create(chosen)


def require_one_scan(plan: str) -> None:
    """Refuse a plan that reads the folder twice: its figure would be far below the speed that Flink can reach."""
    scans = plan.split("== Optimized Execution Plan ==")[1].count("TableSourceScan")
    if scans != 1:
        msg = f"the folder is scanned {scans} times: {plan}"
        raise RuntimeError(msg)


def run(environment: Any, name: str, inbox: Path, home: Path) -> dict[str, float]:
    """Submit the job and wait for its end; return the seconds measured by the client and by the job manager."""
    folder = "'connector' = 'filesystem', 'format' = 'csv', 'path' = '{}'"
    source, sink = folder.format(inbox.as_uri()), folder.format((home / "large").as_uri())
    printed = f"'connector' = 'print', 'print-identifier' = '{name}'"
    for statement in (
        f"CREATE TABLE {name}_rows ({COLUMNS}) WITH ({source})",
        f"CREATE TABLE {name}_large ({COLUMNS}) WITH ({sink})",
        f"CREATE TABLE {name}_totals (k STRING, n BIGINT, total DOUBLE) WITH ({printed})",
        f"CREATE VIEW {name}_judged AS SELECT *, amount > 50 AS is_large FROM {name}_rows",  # noqa: S608 - our own names
    ):
        environment.execute_sql(statement)
    statements = environment.create_statement_set()
    for statement in (
        f"INSERT INTO {name}_large SELECT {NAMES} FROM {name}_judged WHERE is_large",  # noqa: S608 - our own names
        f"INSERT INTO {name}_totals SELECT k, COUNT(*), SUM(amount) FROM {name}_judged GROUP BY k",  # noqa: S608 - our own names
    ):
        statements.add_insert_sql(statement)
    require_one_scan(statements.explain())
    submitted = time.monotonic()
    result = statements.execute()
    result.wait()
    whole = time.monotonic() - submitted
    execution = result.get_job_client().get_job_execution_result().result()
    return {"whole_seconds": whole, "net_seconds": execution.get_net_runtime() / 1000}


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:4]]
    figures = main(*folders, cores=int(sys.argv[4]))
    sys.stdout.flush()
    sys.stdout.write("\n" + json.dumps(figures) + "\n")
    sys.stdout.flush()
