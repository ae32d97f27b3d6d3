"""The world of a simulation: a seed, or a script, decides at each seam who acts next, what fails, and what time it is.

Nothing else does: what threads do between two seams is theirs alone, and the order of what they do at the seams is the
history. So one script is one history, to the byte of its trace.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from drainmark.jobs.world import Seam, World, entered
from drainmark.orchestration.runs import halt_hook
from drainmark.resources.registry import lease
from simulation.faults import FOR_LONG, LEGAL, ON_FULL_DISK, WITHIN, Chances, Fault, fail, fail_for_room, refuse_second
from simulation.files import stamp
from simulation.script import SLOW, Script, Step
from simulation.turns import Crashed, Process, SimEvent, SimThread, Turns

__all__ = ["Crashed", "Simulated"]

T = TypeVar("T")
Work = tuple[Step, Callable[[], None]]

_NAMES = "_names "
_RANDOM_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Simulated(World):
    """The world of one history.

    Args:
        home: below it are all files of the history.

    Attributes:
        counters: how often a fault met a verb, by fault, seam or point, and verb.
        trace: what happened: a line for each seam.
        made: what happened at the seams, as choices of a script.
    """

    def __init__(self, script: Script, home: Path) -> None:
        self._script = script
        self._home = home
        setup = script.setup
        self._chances = Chances(script.seed, setup.rates, setup.hot, setup.stall)
        self._turns = Turns(self._picked)
        self._offset = float(setup.epoch)
        self._begun = time.time()
        self._full_until = 0
        self._listed: dict[str, Any] = {}
        self._between: Callable[[], None] = lambda: None
        self.counters: Counter[tuple[str, str, str]] = Counter()
        self.trace: list[str] = []
        self.made: dict[str, str] = {}
        for kept in (lease._given_up, halt_hook._told_here):
            kept.clear()  # by names that are drawn: a history that is played again would know its own future

    # --- for the player ------------------------------------------------------------------------------------------

    def run(self, work: Mapping[str, Sequence[Work]], between: Callable[[], None]) -> None:
        """Let actors do their steps, each in order, and all of them side by side; return when all have ended.

        A crash ends a step with all its threads, and its actor goes on with the next one. The end of a step is the end
        of a process: its threads end.

        Args:
            between: is called at some moments, while no actor runs.

        Raises:
            BaseException: the first error of `between`, or of a step; or all threads wait.
        """
        self._between = between
        with entered(self), _no_garbage():
            gc.collect()
            gc.freeze()
            self._turns.play({actor: functools.partial(self._act, steps) for actor, steps in work.items()})

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Be in a process beside the actors, at whose seams nothing happens, while they stand still."""
        with entered(self), _no_garbage(), self._turns.alone():
            yield

    def later(self, seconds: float) -> None:
        """Let time pass while nobody works; files that are there get old."""
        self._stamp(self._home)
        self._offset += seconds

    def kill_others(self) -> None:
        """Let every process but the caller's die, as when their machine is lost."""
        self._turns.kill_others()

    def digest(self) -> str:
        return sha256("\n".join(self.trace).encode()).hexdigest()

    @property
    def seams(self) -> int:
        return self._turns.ticks

    @property
    def switches(self) -> int:
        return self._turns.switches

    def _act(self, steps: Sequence[Work]) -> None:
        thread = self._turns.here()
        for step, work in steps:
            if self._turns.finding is not None:
                return
            thread.process, thread.number, thread.passed = Process(str(step.id), step, threads=[thread]), 0, 0
            error: BaseException | None = None
            with suppress(Crashed):
                try:
                    self.trace.append(f"{thread.key} {step.actor} {step.verb} {step.region}")
                    self._turns.give_way(thread, self._picked(thread, [thread, *self._turns.others(thread)]))
                    work()
                except Crashed:
                    raise
                except BaseException as found:
                    error = found
            self._turns.end(thread.process)
            if error is not None:
                error.add_note(f"step {step}")
                self._turns.find(error, error.__cause__)
            gc.collect()  # what the process left must not be there when another one acts

    # --- clock, chance, threads ----------------------------------------------------------------------------------

    def now(self) -> float:
        return self._turns.clock() + self._offset

    def monotonic(self) -> float:
        return self._turns.clock()

    def sleep(self, seconds: float) -> None:
        self._turns.wait(lambda: False, max(0.0, seconds))

    def token(self) -> str:
        return f"{self._drawn():032x}"

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._drawn() / 2**128

    def _drawn(self) -> int:
        thread = self._turns.here()
        thread.drawn += 1
        return self._chances.number(f"{thread.key}#{thread.drawn}")

    def start(self, work: Callable[[], object], name: str) -> SimThread:
        return self._turns.start(work, name)

    def event(self) -> SimEvent:
        return SimEvent(self._turns)

    def whole(self) -> AbstractContextManager[object]:
        return nullcontext()

    # --- seams ---------------------------------------------------------------------------------------------------

    def pass_point(self, point: str) -> None:
        self._meet(None, str(point), "")

    def across(self, seam: Seam, deed: Callable[[], T], on: object = None) -> T:
        # No name is needed in calm, except of listings: those may be repeated later.
        call = "" if self._turns.here().process.is_calm and seam is not Seam.STORE_LIST else self._named(deed, on)
        thread, fault, number = self._meet(seam, str(seam), call)
        holding = seam is Seam.SINK_DATABASE
        thread.holds += holding
        try:
            answer = self._answer(seam, deed, call, on, fault)
        except Exception as error:
            self._note_error(thread, error)
            raise
        finally:
            thread.holds -= holding
        self._lose(thread, seam, fault, number)
        return answer

    @contextmanager
    def transaction(self, seam: Seam) -> Iterator[None]:
        thread, fault, number = self._meet(seam, str(seam), "")
        with self._holding(thread):
            yield
        self._lose(thread, seam, fault, number)

    @contextmanager
    def _holding(self, thread: SimThread) -> Iterator[None]:
        thread.holds += 1
        try:
            yield
        except Exception as error:
            self._note_error(thread, error)
            raise
        finally:
            thread.holds -= 1

    def _answer(self, seam: Seam, deed: Callable[[], T], call: str, on: object, fault: Fault | None) -> T:
        if seam is Seam.STORE_LIST:
            if fault is Fault.STALE and call in self._listed:
                return self._listed[call]  # type: ignore[no-any-return]
            if not call.startswith(_NAMES):  # it tells no times
                self._stamp(_path_of(on))
            self._listed[call] = answer = _in_order(deed())
            return answer
        if seam is Seam.DELTA_UPKEEP:
            self._stamp(_path_of(on))
        if fault is Fault.DOUBLED:
            if seam is Seam.DELTA_COMMIT:
                deed()
                refuse_second()
            with suppress(Exception):
                deed()
        return deed()

    def _lose(self, thread: SimThread, seam: Seam, fault: Fault | None, number: int) -> None:
        if fault is Fault.CRASH_AFTER:
            self._turns.crash(thread.process)
        if fault is Fault.LOST_REPLY:
            fail(seam, number)

    def _meet(self, seam: Seam | None, name: str, call: str) -> tuple[SimThread, Fault | None, int]:
        """Come to a seam: let happen what happens before its call, and return what happens in it."""
        thread = self._turns.tick()
        if thread.process.is_calm:
            return thread, None, 0
        choice = self._chosen(thread, seam, f"{name} {call}")
        kind, _, argument = choice.partition(":")
        fault = Fault(kind) if choice else None
        self.trace.append(f"{thread.key} {name} {call} {choice}".rstrip())
        if fault is None:
            self._fail_if_full(thread, seam, name)
            return thread, None, 0
        self.made[thread.key] = choice
        self._count(fault, name, thread)
        return thread, fault, self._before(thread, seam, name, fault, argument)

    def _chosen(self, thread: SimThread, seam: Seam | None, call: str) -> str:
        """Return what happens at the seam that a thread has come to, or an empty text."""
        given = self._script.choices
        choice = self._drawn_at(thread, seam, call) if given is None else given.get(thread.key)
        if not choice:
            return ""
        kind, _, argument = choice.partition(":")
        if kind not in LEGAL[seam] or (thread.holds and kind not in WITHIN):
            return ""
        if kind != Fault.SWITCH:
            return choice
        to = self._other(self._turns.others(thread), argument)
        return "" if to is None else f"{kind}:{to.label}"

    def _drawn_at(self, thread: SimThread, seam: Seam | None, call: str) -> str | None:
        step = thread.process.step
        if step is not None and step.actor == SLOW and self._chances.stalls(thread.key, call):
            return f"{Fault.PAUSE}:{FOR_LONG}"
        return self._chances.at(thread.key, seam)

    def _other(self, others: Sequence[SimThread], said: str) -> SimThread | None:
        """Return the thread with a label; the n-th one for a number n."""
        if others and said.isdigit():
            return others[int(said) % len(others)]
        return next((each for each in others if each.label == said), None)

    def _before(self, thread: SimThread, seam: Seam | None, name: str, fault: Fault, argument: str) -> int:
        number = int(argument) if argument.removeprefix("-").isdigit() else 0
        match fault:
            case Fault.SWITCH:
                self._turns.give_way(thread, self._other(self._turns.others(thread), argument))
            case Fault.PAUSE:
                self._turns.pause(thread, number)
            case Fault.SAMPLE:
                self._sample()
            case Fault.CLOCK_JUMP:
                self._stamp(self._home)
                self._offset += number
            case Fault.CRASH_BEFORE:
                self._turns.crash(thread.process)
            case Fault.FULL_DISK:
                self._full_until = self._turns.ticks + number
        self._fail_if_full(thread, seam, name)
        if fault is Fault.ERROR and seam is not None:
            fail(seam, number)
        return number

    def _fail_if_full(self, thread: SimThread, seam: Seam | None, name: str) -> None:
        if seam in ON_FULL_DISK and self._turns.ticks <= self._full_until:
            self._count(Fault.FULL_DISK, name, thread)
            fail_for_room(seam)

    def _sample(self) -> None:
        """Let a reader come; its error is a finding, by which all processes die."""
        with self._turns.alone():
            try:
                self._between()
            except Exception as error:
                self._turns.find(error)

    def _picked(self, thread: SimThread, ready: Sequence[SimThread]) -> SimThread:
        """Choose who goes on when a thread cannot, or when a step begins."""
        first = ready[0]
        if thread.process.step is None or thread.process.is_calm or len(ready) == 1:
            return first
        given, key = self._script.choices, thread.key
        said = str(self._chances.number(key) & 0xFFFF) if given is None else given.get(key, "").removeprefix("next:")
        to = self._other(ready, said) or first
        if to is not first:
            self.made[key] = f"next:{to.label}"
        self.trace.append(f"{key} next {to.label}")
        return to

    # --- files and the trace -------------------------------------------------------------------------------------

    def _stamp(self, place: Path | None) -> None:
        if place is not None:
            stamp(place, self._begun - 1.0, self._turns.now + self._offset)

    def _named(self, deed: Callable[[], object], on: object) -> str:
        """Return a call as text, without what differs from one run of the history to the next."""
        named = [on]
        function = ""
        if isinstance(deed, functools.partial):
            function, named = deed.func.__name__, [*deed.args, *deed.keywords.values()]
        said = " ".join(filter(None, (function, *map(_text, named))))
        return _RANDOM_NAME.sub("*", said.replace(str(self._home), "~"))

    def _note_error(self, thread: SimThread, error: Exception) -> None:
        if not thread.process.is_calm:
            self.trace.append(f"{thread.key} raises {type(error).__name__}")

    def _count(self, fault: Fault, name: str, thread: SimThread) -> None:
        if thread.process.step is not None:
            self.counters[fault, name, thread.process.step.verb] += 1


def _text(value: object) -> str:
    if isinstance(value, str | int | Path):
        return str(value)
    place = getattr(value, "uri", None)
    return place if isinstance(place, str) else ""


def _path_of(on: object) -> Path | None:
    found = getattr(on, "path", on)
    return found if isinstance(found, Path) else None


def _in_order(answer: T) -> T:
    """Return a listing in an order of its own: that of the system is none."""
    if isinstance(answer, Mapping):
        return dict(sorted(answer.items()))  # type: ignore[return-value]
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        return answer
    return sorted(answer, key=str)  # type: ignore[return-value]


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Collect no garbage inside the block: a generator that is collected acts, at a moment that nobody chose."""
    was_enabled, shown = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda found: None if found.exc_type is Crashed else shown(found)
    try:
        yield
    finally:
        sys.unraisablehook = shown
        if was_enabled:
            gc.enable()
