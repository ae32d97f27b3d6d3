"""The operator: does a verb, reads the error, and does what its remedy says. A remedy is a promise, also in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from followed import chains

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, OperatorFailed, Owned, Retry
from drainmark.jobs.runtime.messages import classified
from drainmark.orchestration.inspection.status import status_of
from simulation import verbs
from simulation.commands import carry_out

_ROUNDS = 12
HOUR = 3600.0
_RUNS_INTO_DAMAGE = 0.6


class Finding(AssertionError):
    """What must not happen."""


def attended(act: verbs.Act, verb: str) -> str:
    """Do a verb, and what its error says to do; return "ok" or the name of the error.

    Raises:
        Finding: the error is none of Drainmark's, or does not say what to do.
    """
    error = _error_of(partial(verbs.VERBS[verb], act))
    if error is None:
        return "ok"
    if error.retry not in (Retry.REFUSE, Retry.QUIET, Retry.WAIT):
        for command in act.draw.choice(chains(error.remedy or "") or [[]]):
            if _error_of(partial(carry_out, act, command)) is not None:
                break
    return type(error).__name__


def bring_to_rest(act: verbs.Act) -> None:
    """Run a region, and do what it says, until everything is processed and published, and nothing is wrong.

    Raises:
        Finding: what it says does not lead there.
    """
    said: list[str] = []
    if act.fed.region in act.scene.damaged:  # a run with nothing to do does not look at the tables
        if act.draw.random() < _RUNS_INTO_DAMAGE:
            verbs.write(act)
        else:
            _error_of(partial(carry_out, act, ["doctor", "--repair"]))
    for turn in range(_ROUNDS * (4 if act.scene.setup.forgets else 1)):  # each input that held a value is a halt
        error = _error_of(partial(verbs.run, act))
        if error is None and (missing := _missing(act)) is None:
            return
        said.append(str(error or missing))
        if isinstance(error, Owned):
            _outwait(act, turn)
            continue
        ways = [*(chains(error.remedy or "") if error is not None else ()), *_shown(act)]
        for command in ways[turn % len(ways)] if ways else []:
            refusal = _error_of(partial(carry_out, act, command))
            if refusal is not None:
                said.append(f"{' '.join(command)}: {refusal}")
                if isinstance(refusal, Owned):
                    _outwait(act, turn)
                break
    raise Finding(f"{act.fed.region} does not come to rest:\n  " + "\n  ".join(said))


def _outwait(act: verbs.Act, turn: int) -> None:
    """Wait for the end of a lease: dead actors seem alive, as this process is; after a jump back it ends late."""
    world.sleep(HOUR if turn else act.scene.setup.lease_seconds + 1)


def _missing(act: verbs.Act) -> str | None:
    """Return what a region at rest must not have; None if it rests."""
    history = act.fed.history()
    waiting = act.fed.workplace.registry.pending_count(act.fed.region)
    if waiting or history.unpublished or history.lags or history.halt is not None:
        return f"pending {waiting}, not published {len(history.unpublished)}, lags {dict(history.lags)}, {history.halt}"
    return None


def _shown(act: verbs.Act) -> Sequence[Sequence[Sequence[str]]]:
    return chains(", or: ".join(status_of(act.fed.workplace, act.fed.region)["remedies"]))


def _error_of(deed: Callable[[], object]) -> DrainmarkError | None:
    """Do something; return its error.

    Raises:
        Finding: the error is none that Drainmark means, or it does not say what to do.
    """
    try:
        deed()
    except Exception as raised:
        if isinstance(raised, Finding):
            raise
        error = classified(raised)
        if isinstance(error, OperatorFailed):
            raise Finding(f"no error that Drainmark means: {raised!r}") from raised
        if error.remedy is None and error.retry is not Retry.REFUSE:
            raise Finding(f"{type(error).__name__} does not say what to do: {error}") from raised
        return error
    return None
