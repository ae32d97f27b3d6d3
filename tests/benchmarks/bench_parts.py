"""The parts of the benchmark, and the process that one of them runs in.

A part is a module with `measure(console, *, quick, root, …) -> dict[str, float]`. Each part runs in a process of its
own, so it does not inherit the JVM, page faults or open tables of another part, and its crash does not harm others.

`bench.py` starts a part with `python bench_parts.py NAME RESULT ROOT OPTIONS`. The part writes to the file RESULT, as
JSON, either `{"figures": {…}}` or `{"reason": "why it was passed over"}`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_input import WrongResult
from rich.console import Console

_TESTS = Path(__file__).parents[1]
_PEER_SECONDS = 600
sys.path += [str(_TESTS), str(_TESTS / "cluster")]  # a part may use their helpers


class PassedOver(Exception):
    """An error: a part cannot be measured on this machine; the message names the missing requirement."""


def asked(who: str, program: Path, arguments: Sequence[str], packages: Path) -> Any:
    """Run a program of a peer, with packages of its own; return the JSON of its last line of output.

    Raises:
        RuntimeError: the program failed; the message has the end of its standard error.
    """
    done = subprocess.run(
        [sys.executable, str(program), *arguments], env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True, text=True, check=False, timeout=_PEER_SECONDS,
    )  # fmt: skip
    if done.returncode:
        msg = f"{who}'s job failed with exit code {done.returncode}: {done.stderr[-3000:]}"
        raise RuntimeError(msg)
    return json.loads(done.stdout.rstrip().rpartition("\n")[2])


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark.

    Attributes:
        module: the module with the function.
        function: the function to call; `measure` unless a module has several parts.
        options: the options of the command line that it takes, in addition to `quick`.
        minutes: the minutes that it takes on two otherwise idle cores.
        is_long: the part is left out unless it is named.
    """

    name: str
    module: str
    function: str = "measure"
    options: tuple[str, ...] = ()
    minutes: float = 0.0
    is_long: bool = False


_SPARK = ("master", "conf")
_STREAMING_ONE = ("files", "rounds", "all_peers", *_SPARK)

PARTS = {
    part.name: part
    for part in (
        Part("one", "bench_streaming", "measure_one", _STREAMING_ONE, 3.5),
        Part("bulk", "bench_streaming", "measure_bulk", ("bulk_files", "rounds", "all_peers", *_SPARK), 7),
        Part("changes", "bench_changes", options=("rounds", *_SPARK), minutes=8, is_long=True),
        Part("flink", "bench_flink", options=("bulk_files", "rounds", *_SPARK), minutes=2.6),
        Part("commits", "bench_commits", options=("commits", *_SPARK), minutes=0.7),
        Part("counting", "bench_counting", minutes=1.1),
        Part("landing", "bench_landing", minutes=4.5),
        Part("listing", "bench_listing", minutes=3.3),
        Part("growth", "bench_growth", minutes=6),
        Part("recovery", "bench_recovery", options=("rounds",), minutes=5),
        Part("rewind", "bench_rewind", options=("rounds",), minutes=4),
        Part("driver", "bench_driver", minutes=40, is_long=True),
        Part("driver_memory", "bench_driver_memory", minutes=25, is_long=True),
        Part("large_files", "bench_driver_memory", "measure_large", minutes=15, is_long=True),
        Part("one_upsert", "bench_streaming", "measure_one_upsert", _STREAMING_ONE, 4, is_long=True),
        Part("listing_million", "bench_listing", "measure_million", minutes=11, is_long=True),
        Part("state", "bench_state", minutes=30, is_long=True),
        Part("recovery_periods", "bench_recovery", "measure_periods", ("rounds",), 4, is_long=True),
        Part("checkpoints", "bench_checkpoints", minutes=39, is_long=True),
        Part("figure7", "bench_figure7", minutes=30, is_long=True),
        Part("applications", "bench_applications", minutes=5, is_long=True),
        Part("formats", "bench_formats", options=("rounds", "against", *_SPARK), minutes=6, is_long=True),
        Part("stages", "bench_stages", options=("rounds",), minutes=35, is_long=True),
        Part("persisting", "bench_persisting", options=("rounds",), minutes=10, is_long=True),
        Part("stage_recovery", "bench_stage_recovery", options=("rounds",), minutes=10, is_long=True),
    )
}


def run(name: str, result: Path, root: Path, options: Mapping[str, Any]) -> int:
    """Measure a part in this process; return 0, or 1 if a result is wrong."""
    part, console = PARTS[name], Console(width=110)
    function = getattr(importlib.import_module(part.module), part.function)
    chosen = {option: options[option] for option in part.options}
    try:
        outcome: dict[str, Any] = {"figures": function(console, quick=options["quick"], root=root, **chosen)}
    except PassedOver as passed:
        outcome = {"reason": str(passed)}
    except WrongResult as wrong:
        console.print(f"[red]wrong result[/red]: {wrong}")
        return 1
    result.write_text(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    code = run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # do not wait for daemon threads or the JVM (H34)
