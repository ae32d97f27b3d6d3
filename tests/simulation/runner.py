"""Many histories: worker processes play seeds until the time is over, or one finds something."""

from __future__ import annotations

import faulthandler
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from simulation.history import Outcome, play, script_of
from simulation.mutants import MUTANTS

_LONGEST_SECONDS = 300.0
_HISTORIES_OF_A_WORKER = 400
"""A worker is replaced after so many: libraries keep a little of each history."""


@dataclass(slots=True)
class Totals:
    """Sums over histories.

    Attributes:
        findings: the first history of each kind.
        faults, verbs, checks: see `Outcome`.
    """

    histories: int = 0
    seams: int = 0
    seconds: float = 0.0
    findings: list[Outcome] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    verbs: Counter[tuple[str, str]] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.histories += 1
        self.seams += outcome.seams
        self.faults += outcome.faults
        self.verbs += outcome.verbs
        self.checks += outcome.checks
        if outcome.finding is not None:
            self.found[outcome.kind] += 1
            if self.found[outcome.kind] == 1:
                self.findings.append(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to play.

    Attributes:
        seed: of the run; history `n` of it has the seed `seed * 1_000_000 + n`.
        seconds: for how long histories are begun.
        first: number of the first history.
        histories: at most so many; None for no limit.
        workers: number of processes.
        mutant: name of the fault that is put into the product; "" for none.
        stops: end with the first finding.
    """

    seed: int
    seconds: float
    workers: int
    first: int = 0
    histories: int | None = None
    mutant: str = ""
    stops: bool = False


def run(wanted: Wanted, tell: Callable[[Outcome], None] = lambda outcome: None) -> Totals:
    """Play histories; return their sums.

    Args:
        tell: called with each outcome.
    """
    began, totals = time.monotonic(), Totals()
    last = 10**6 if wanted.histories is None else wanted.first + wanted.histories
    seeds = (wanted.seed * 1_000_000 + number for number in range(wanted.first, last))
    crew = [_Worker(wanted.mutant) for _ in range(wanted.workers)]
    try:
        while True:
            is_over = time.monotonic() - began > wanted.seconds or (wanted.stops and totals.found)
            for worker in crew:
                if not worker.seed and not is_over and (seed := next(seeds, None)) is not None:
                    worker.begin(seed)
            busy = {worker.answers: worker for worker in crew if worker.seed}
            if not busy or (wanted.stops and totals.found):
                break
            for connection in wait(list(busy)):
                for outcome in busy[connection].outcomes():  # type: ignore[index]
                    totals.add(outcome)
                    tell(outcome)
    finally:
        for worker in crew:
            worker.end()
    totals.seconds = time.monotonic() - began
    return totals


class _Worker:
    """A process that plays one seed after the other."""

    def __init__(self, mutant: str) -> None:
        self._mutant = mutant
        self._played = 0
        self.seed = 0
        self._start()

    def _start(self) -> None:
        self.answers, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(theirs, self._mutant), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, seed: int) -> None:
        if self._played >= _HISTORIES_OF_A_WORKER:
            self.end()
            self._start()
            self._played = 0
        self.seed = seed
        self.answers.send(seed)

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcome of the seed; a process that died or hung is a finding, too."""
        seed, self.seed = self.seed, 0
        self._played += 1
        try:
            yield self.answers.recv()
        except EOFError:
            self._process.join()
            yield _died(seed, self._process.exitcode)
            self._start()

    def end(self) -> None:
        self.answers.close()
        self._process.terminate()
        self._process.join()


_SPAWN = multiprocessing.get_context("spawn")


def _work(seeds: Connection[Any, Any], mutant: str) -> None:
    with MUTANTS[mutant]() if mutant else nullcontext():
        while True:
            try:
                seed = seeds.recv()
            except EOFError:
                return
            faulthandler.dump_traceback_later(_LONGEST_SECONDS, exit=True)
            outcome = play(script_of(seed))
            faulthandler.cancel_dump_traceback_later()
            seeds.send(outcome)


def _died(seed: int, code: int | None) -> Outcome:
    return Outcome(
        script=script_of(seed), finding=f"the process that played seed {seed} ended with {code}", kind="died",
        digest="", made={}, trace=[], faults=Counter(), verbs=Counter(), checks=Counter(), seams=0, seconds=0.0,
    )  # fmt: skip
