"""One history: a script is played, and whatever does not hold is its finding."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import traceback
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

from drainmark.jobs import world
from drainmark.resources import home_secret
from drainmark.resources.delta.keyed import keyed_merge
from simulation import scene as scenes
from simulation import verbs
from simulation.checks import DAY, Checks, Wrong
from simulation.scene import Scene
from simulation.script import Script
from simulation.simulated import Simulated, Work

_LEASES_END = 7200.0
"""After so many seconds no lease of a dead actor is left, also behind clocks that jumped back."""

_MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one: a history syncs thousands of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a history ended.

    Attributes:
        finding: what did not hold, with the way to it; None if all did.
        kind: what findings of one cause have in common.
        digest: of the trace: equal for every play of the script.
        made: what happened at the seams, as the choices of a script.
        trace: the last lines.
        faults: how often each fault met each verb, by fault, seam or point, and verb.
        verbs: how often each verb ended how, by verb and "ok" or the name of its error.
        checks: how often each check looked.
        seams: number of calls that left a process.
        folder: of the history, if it was kept.
    """

    script: Script
    finding: str | None
    kind: str
    digest: str
    made: dict[str, str]
    trace: list[str]
    faults: Counter[tuple[str, str, str]]
    verbs: Counter[tuple[str, str]]
    checks: Counter[str]
    seams: int
    seconds: float
    folder: Path | None = field(default=None)


def script_of(seed: int) -> Script:
    """Return the history of a seed."""
    setup = scenes.setup_of(seed)
    return Script(seed=seed, setup=setup, phases=scenes.phases(seed, setup))


def _as_large_tables() -> AbstractContextManager[object]:
    """Let small tables be merged as large ones are: files are searched for keys, and rows are marked to the last."""
    return patch.multiple(keyed_merge, _MUCH_OF_TABLE=0, _MOST_MARKED=1)


def _with_one_secret() -> AbstractContextManager[object]:
    """Let each home have the same key, by which names of files hide the values that were erased."""
    return patch.object(home_secret.secrets, "token_hex", lambda count: "5a" * count)


def play(script: Script, *, keep: bool = False) -> Outcome:
    """Play a history.

    Args:
        keep: leave its folder if there is a finding.
    """
    logging.disable(logging.CRITICAL)  # the product tells of what it recovers from; a finding has its own text
    began, before = time.monotonic(), Counter(scenes.outcomes)
    base = Path(tempfile.mkdtemp(prefix="drainmark-", dir=_MEMORY if _MEMORY.is_dir() else None))
    sim, checks = Simulated(script, base), Counter[str]()
    finding = kind = ""
    try:
        with _as_large_tables(), _with_one_secret():
            _play(script, sim, base, checks)
    except Exception as error:
        finding = "".join(traceback.format_exception(error))
        kind = _kind_of(error)
    finally:
        stays = keep and bool(finding)
        if not stays:
            shutil.rmtree(base, ignore_errors=True)
    return Outcome(
        script=script,
        finding=finding or None,
        kind=kind,
        digest=sim.digest(),
        made=dict(sim.made),
        trace=sim.trace[-60:],
        faults=sim.counters,
        verbs=Counter(scenes.outcomes) - before,
        checks=checks,
        seams=sim.seams,
        seconds=time.monotonic() - began,
        folder=base if stays else None,
    )


def _play(script: Script, sim: Simulated, base: Path, asked: Counter[str]) -> None:
    with sim.calm():
        scene = Scene(base, script.setup, script.seed, kill_others=sim.kill_others)
        checks = Checks(scene, asked)
    try:
        for steps in script.phases:
            work: dict[str, list[Work]] = {}
            for step in steps:
                work.setdefault(step.actor, []).append((step, scene.work(step)))
            sim.run(work, checks.sample)
            with sim.calm():
                checks.sample()  # what a late owner left is seen before a repair heals it
                checks.forget_damaged()
                scene.come_to_rest()
                checks.at_rest()
        with sim.calm():
            world.sleep(_LEASES_END)
            for region in checks.begun():  # what upkeep drops nobody within the horizon may miss
                draw = Random(f"{script.seed}/upkeep")
                verbs.maintain(verbs.Act(scene=scene, fed=scene.fresh(region), draw=draw))
            sim.later(DAY / 4)  # nothing is deleted while rows are in the future of a clock that was set back
            checks.collect()
            sim.later(2 * DAY)
            checks.after_days()
            checks.at_rest(views=3)
            checks.take_back(script.seed)
            scene.come_to_rest()
            checks.at_rest(views=0)
            checks.collect()  # what just left stays for the readers of the states before
    finally:
        with sim.calm():
            scene.close()


def _kind_of(error: BaseException) -> str:
    """Return the class of an error, the check or the place of the product where it was raised."""
    if isinstance(error, Wrong):
        return f"Wrong {str(error).partition(':')[0]}"
    while error.__cause__ is not None:
        error = error.__cause__
    places = [f"{Path(frame.filename).stem}.{frame.name}" for frame in traceback.extract_tb(error.__traceback__)
              if "drainmark" in frame.filename or "/tests/" not in frame.filename]  # fmt: skip
    return f"{type(error).__name__} {places[-1] if places else ''}".strip()
