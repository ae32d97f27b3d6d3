"""`drainmark demo --chaos`: the demo is killed at random many times, and compared with plain Python at the end.

Every run is the command line itself in a process group of its own, with the JVM. The group gets SIGKILL at a random
moment of its start, its processing or its commits, or at a random fail point. More logs arrive between the runs.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, Halted
from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.cli.demo.project import APPLICATION, DemoProject, compare, headline
from drainmark.orchestration.testing.crash import matrix

if TYPE_CHECKING:
    from drainmark.jobs.testing.syslog import SyslogFile
    from drainmark.orchestration.workplace.workplace import Workplace

REGION = "log_watch/lines"
SLICE = 6
"""Number of files that arrive before each run: a few seconds of work in groups of one to three."""

LINES = 150
PATIENCE_SECONDS = 180.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Strike:
    """The moment at which a run is killed.

    Attributes:
        moment: the event to wait for: "start", "claim", "commit"; or a fail point at which the run kills itself.
        delay: seconds after the event; for a fail point, the number of the passing at which it kills.
    """

    moment: str
    delay: float

    @property
    def fail_point(self) -> str:
        """Return the fail point to arm, "" if the event is seen from outside."""
        return f"{self.moment}:kill:{self.delay:.0f}" if "." in self.moment else ""


def strikes(chance: random.Random) -> Iterator[Strike]:
    """Yield strikes without end, in blocks of five kinds in random order."""
    passed = [point.value for point in FailPoint if not matrix.is_of_rewind(point)]
    passed = [name for name in passed if not name.startswith(("compact.", "repair.", "claim.before"))]
    while True:
        kinds = [
            Strike("start", chance.uniform(0.2, 6.0)),
            Strike("claim", chance.uniform(0.0, 0.4)),
            Strike("claim", chance.uniform(0.4, 3.0)),
            Strike("commit", chance.uniform(0.0, 0.3)),
            Strike(chance.choice(passed), chance.randint(1, 2)),
        ]
        yield from chance.sample(kinds, len(kinds))


@dataclass(frozen=True, slots=True)
class Standing:
    """The status of the region, from its checkpoint table and the registry.

    Attributes:
        unpublished: ids of groups that are committed and not known to be published.
        step: the state of the region that its owner recorded last.
    """

    epoch: int
    states: int
    committed_id: int
    unpublished: tuple[int, ...]
    step: str

    @classmethod
    def at(cls, workplace: Workplace) -> Standing:
        """Return the present status."""
        history = workplace.history(REGION)
        return cls(
            epoch=history.epoch,
            states=len(history.states),
            committed_id=history.committed_id,
            unpublished=tuple(row.sequence_id for row in history.unpublished),
            step=str(workplace.registry.region_info(REGION).state or "STARTED"),
        )


@dataclass(slots=True, kw_only=True)
class Chaos:
    """A demo that is killed many times.

    Attributes:
        workplace: the demo's home, only read.
        arriving: the logs that have not arrived yet.
        arrived: number of logs that have arrived.
    """

    project: DemoProject
    workplace: Workplace
    chance: random.Random
    arriving: list[SyslogFile]
    year: int
    arrived: int = 0
    recovered_seconds: list[float] = field(default_factory=list)
    _wounded: Standing | None = None

    def kill(self, number: int, plan: Iterator[Strike]) -> None:
        """Start runs until one is killed before it ends by itself; report the kill.

        Raises:
            DrainmarkError: a run ended by itself with an error.
        """
        while True:
            self._arrive()
            strike = next(plan)
            before = Standing.at(self.workplace)
            started = time.monotonic()
            code = self._run(strike, before.epoch)
            if code == -signal.SIGKILL:
                self._tell(number, strike, time.monotonic() - started, before)
                return
            if code == Halted.exit_code:  # too many kills in a row without a state: the limit of attempts works
                self.project.run("resume", APPLICATION, "--reason", "killed too often in a row")
            elif code:
                raise DrainmarkError(f"a run ended by itself with {code}", remedy="see the messages above")

    def finish(self) -> None:
        """Let the next slice of logs arrive, and a last run end by itself.

        Raises:
            DrainmarkError: the run ended with an error.
        """
        self._arrive()
        code = self._run(None, Standing.at(self.workplace).epoch)
        if code:
            raise DrainmarkError(f"the last run ended with {code}", remedy="see the messages above")

    def _arrive(self) -> None:
        for file in self.arriving[:SLICE]:
            file.write(self.project.inbox)
        self.arrived += len(self.arriving[:SLICE])
        del self.arriving[:SLICE]

    def _run(self, strike: Strike | None, epoch: int) -> int:
        """Run the command line, and kill its process group at the strike's moment; return its exit code."""
        size = str(self.chance.randint(1, 3))
        command = ("run", APPLICATION, "--max-group", size, "--set", f"year={self.year}")
        fail_point = strike.fail_point if strike else ""
        process = self.project.start(*command, fail_points=fail_point)
        started = time.monotonic()
        deadline = started + PATIENCE_SECONDS
        seen = {"start": started}
        states = Standing.at(self.workplace).states
        try:
            while process.poll() is None and time.monotonic() < deadline:
                self._watch(seen, epoch, states)
                if strike and strike.moment in seen and time.monotonic() >= seen[strike.moment] + strike.delay:
                    break
                time.sleep(_POLL_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def _watch(self, seen: dict[str, float], epoch: int, states: int) -> None:
        """Record when the run claimed, when it committed, and when it had recovered from the last kill."""
        look = Standing.at(self.workplace)
        now = time.monotonic()
        if look.epoch > epoch:
            seen.setdefault("claim", now)
        if look.states > states:
            seen.setdefault("commit", now)
        wounded = self._wounded
        if wounded is not None and look.epoch > epoch and not set(wounded.unpublished) & set(look.unpublished):
            seconds = now - seen["start"]
            rolled = f", rolled forward {_ids(wounded.unpublished)}" if wounded.unpublished else ""
            self.project.console.print(f"         [green]recovered[/] {seconds:.1f} s after the restart{rolled}")
            self.recovered_seconds.append(seconds)
            self._wounded = None

    def _tell(self, number: int, strike: Strike, seconds: float, before: Standing) -> None:
        after = Standing.at(self.workplace)
        if self._wounded is not None:
            self.project.console.print("         not recovered yet when the next kill struck")
        where = _where(strike, before, after)
        left = f", not published yet {_ids(after.unpublished)}" if after.unpublished else ""
        self.project.console.print(
            f"[bold red]kill {number:2}[/]  {seconds:4.1f} s after the start, {where}: epoch {after.epoch}, "
            f"committed id {before.committed_id} → {after.committed_id}{left}",
            soft_wrap=True,
        )
        self._wounded = after


def _where(strike: Strike, before: Standing, after: Standing) -> str:
    """Return the step of the protocol at which a run was killed."""
    if strike.fail_point:
        return f"at {strike.moment}"
    if after.epoch == before.epoch:
        return "starting, before the claim"
    if after.unpublished:
        return "between commit and publish"
    return f"in {after.step}"


def _ids(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def run_chaos(project: DemoProject, *, kills: int, seed: int) -> None:
    """Kill the demo `kills` times, at moments that the seed decides, then let it end and compare.

    Raises:
        DrainmarkError: the sinks differ from the counts of plain Python, an id was used twice, or a run failed.
    """
    from drainmark.jobs.testing.syslog import HOSTS, START, generate_syslog
    from drainmark.orchestration.cli.demo.logs import count_in_python
    from drainmark.orchestration.testing.crash.invariants import reused_ids, unfinished
    from drainmark.orchestration.testing.processing import settings_of
    from drainmark.orchestration.workplace.workplace import Workplace

    files_per_host = -(-SLICE * 2 * (kills + 1) // len(HOSTS))
    made = generate_syslog(seed=seed, files_per_host=files_per_host, lines_per_file=LINES)
    workplace = Workplace(settings_of(project.home, project.root))
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    chaos = Chaos(project=project, workplace=workplace, chance=chance, arriving=list(made), year=START.year)
    headline(project.console, "Chaos", f"{kills} kills by SIGKILL at random moments; --seed {seed} repeats them")
    started, plan = time.monotonic(), strikes(chance)
    for number in range(1, kills + 1):
        chaos.kill(number, plan)
    chaos.finish()
    files = sorted(project.inbox.rglob("*.log"))
    problems = [*reused_ids(workplace.store(REGION).checkpoint.rows()), *unfinished(workplace, REGION)]
    if problems:
        raise DrainmarkError(f"after {kills} kills: {'; '.join(problems)}")
    headline(project.console, "What is left", "the sinks, and what plain Python counts in the same files")
    compare(project, count_in_python(files, START.year), len(files))
    slowest = max(chaos.recovered_seconds, default=0.0)
    project.console.print(
        f"{kills} kills in {time.monotonic() - started:.0f} s; recovered after at most {slowest:.1f} s, the start of "
        "the JVM included; no id was used twice."
    )
