"""The job of part `stages` in PyFlink as a Flink engineer would write it; run by `bench_stages` in its own environment.

`python flink_stages_job.py HOME CORES CASES` runs the cases one after the other in one JVM. CASES is JSON: a list of
`{"name", "mode", "sleep_us", "rows"}`; `mode` is `aligned`, `unaligned` or `without`. It prints one line of JSON: by
name of a case, the times at which each of its checkpoints was triggered and at which the last task had acknowledged
it, in seconds of the wall clock, from Flink's own statistics. The rows are in HOME/NAME/rows: number, value, and the
times at which the source and the measuring map had it.

This module needs only PyFlink and the standard library. The choices are in Flink's favour: functions get records in
bundles of a hundred, so that a barrier does not wait for the default thousand; records between functions are pickled,
and the JVM passes them on unread; the source stamps its rows in its own task; objects are reused. The rows go to text
files that the sink commits with checkpoints.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

INTERVAL = "1 s"
SETTINGS = {
    "execution.runtime-mode": "STREAMING",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "pipeline.object-reuse": "true",
    "python.execution-mode": "process",  # an interpreter in the JVM does not find the packages of the venv
    "python.fn-execution.bundle.size": "100",
    "restart-strategy.type": "none",
    "web.checkpoints.history": "10000",
}
_LOOK_SECONDS = 0.25
_NAP_US = 1000
"""A row that sleeps does so for a millisecond, which the system's timer can resolve, and only some rows sleep."""


def configuration_of(mode: str, home: Path, cores: int, port: int) -> Any:
    """Return the configuration of the Flink environment of a case."""
    from pyflink.common import Configuration

    settings = {
        **SETTINGS,
        "parallelism.default": str(cores),
        "rest.bind-port": str(port),
        "rest.port": str(port),
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
    }
    if mode != "without":
        settings |= {
            "execution.checkpointing.interval": INTERVAL,
            "execution.checkpointing.storage": "filesystem",
            "execution.checkpointing.dir": (home / "checkpoints").as_uri(),
            "execution.checkpointing.unaligned.enabled": str(mode == "unaligned").lower(),
        }
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    return configuration


def build(environment: Any, rows: int, sleep_us: int, out: Path) -> None:
    """Declare the job: every channel is a random shuffle (F8)."""
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.common.serialization import Encoder
    from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    every = _NAP_US // sleep_us if sleep_us else 0

    def stamped(number: int) -> tuple[int, float]:
        return number, time.time()

    def first(row: tuple[int, float]) -> tuple[int, float, float]:
        return row[0], row[1], row[0] / 2

    def second(row: tuple[int, float, float]) -> tuple[int, float, float]:
        return row[0], row[1], row[2] + 1

    def sleepy(row: tuple[int, float, float]) -> tuple[int, float, float]:
        if every and row[0] % every == 0:
            time.sleep(_NAP_US / 1e6)
        return row

    def measuring(row: tuple[int, float, float]) -> str:
        return f"{row[0]},{row[2]!r},{row[1]!r},{time.time()!r}"

    sink = (
        FileSink.for_row_format(str(out), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    source = NumberSequenceSource(0, rows - 1)
    stream = environment.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).map(stamped)
    for function in (first, second, sleepy):
        stream = stream.shuffle().map(function)
    stream.shuffle().map(measuring, output_type=Types.STRING()).sink_to(sink)


def run(case: dict[str, Any], home: Path, cores: int) -> list[tuple[float, float]]:
    """Run a case to its end; return the times (triggered, acknowledged by all) of its checkpoints."""
    from pyflink.datastream import StreamExecutionEnvironment

    port = _free_port()
    configuration = configuration_of(case["mode"], home, cores, port)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    build(environment, case["rows"], case["sleep_us"], home / "rows")
    client = environment.execute_async(case["name"])
    job, ended, found = str(client.get_job_id()), client.get_job_execution_result(), {}
    while not ended.done():
        time.sleep(_LOOK_SECONDS)
        found.update(_checkpoints(port, job))
    ended.result()
    return [found[number] for number in sorted(found)]


def _checkpoints(port: int, job: str) -> dict[int, tuple[float, float]]:
    """Return the completed checkpoints by number, from the cluster of the job; none if the cluster is gone."""
    connection = http.client.HTTPConnection("localhost", port, timeout=5)
    with suppress(OSError, http.client.HTTPException, ValueError):
        connection.request("GET", f"/jobs/{job}/checkpoints")
        answer = json.loads(connection.getresponse().read())
        done = [each for each in answer.get("history", ()) if each["status"] == "COMPLETED"]
        return {
            each["id"]: (begun / 1e3, (begun + each["end_to_end_duration"]) / 1e3)
            for each in done
            if (begun := each["trigger_timestamp"])
        }
    return {}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return int(taken.getsockname()[1])


if __name__ == "__main__":
    root, slots = Path(sys.argv[1]), int(sys.argv[2])
    states = {each["name"]: run(each, root / each["name"], slots) for each in json.loads(sys.argv[3])}
    sys.stdout.flush()
    sys.stdout.write("\n" + json.dumps(states) + "\n")
    sys.stdout.flush()
