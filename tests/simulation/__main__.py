"""`python -m simulation`: play histories of the protocol, and say what does not hold; see `docs`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path

from simulation.faults import Fault
from simulation.history import Outcome, play
from simulation.mutants import MUTANTS
from simulation.runner import Totals, Wanted, run
from simulation.script import Script
from simulation.shrink import shrink

_SECONDS = 60.0
_ENOUGH_HISTORIES = 25
"""So many meet every kind of fault: about a minute of two workers."""

_KEPT = Path(__file__).parents[2] / "build" / "simulation"
_SHRINK_SECONDS = 120.0
_MUTANT_HISTORIES = 60
"""About a minute of two workers. Histories are counted, so that the load of the machine decides nothing."""


def main() -> int:
    """Return the exit code: 0 if nothing was found."""
    given = _parser().parse_args()
    if given.script is not None:
        return _replayed(Script.from_json(given.script.read_text()))
    if given.mutants is not None:
        return _mutated(given, given.mutants or list(MUTANTS))
    seconds = given.seconds or (_SECONDS if given.histories is None else 10**9)
    totals = run(
        Wanted(seed=given.seed, first=given.first, seconds=seconds, workers=given.workers, histories=given.histories),
        lambda outcome: _tell(outcome, given.verbose),
    )
    for outcome in totals.findings:
        _report(outcome, given.kept)
    _tables(totals)
    unmet = sorted(set(Fault) - {fault for fault, *_ in totals.faults})
    lacks = bool(unmet) and totals.histories >= _ENOUGH_HISTORIES
    if lacks:
        print(f"never met: {', '.join(unmet)}")
    print(_last_line(totals))
    return int(bool(totals.findings) or lacks)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, help="for how long histories are begun (60, or as --histories says)")
    parser.add_argument("--seed", type=int, default=1, help="of the run: the same seed, the same histories (1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--histories", type=int, help="play so many; with --mutants, at most so many of each")
    parser.add_argument("--first", type=int, default=0, help="number of the first history of the run (0)")
    parser.add_argument("--script", type=Path, help="play one history: a script that a finding left")
    parser.add_argument("--mutants", nargs="*", choices=[*MUTANTS, []], help="put known faults into the product")
    parser.add_argument("--kept", type=Path, default=_KEPT, help="where scripts of findings go")
    parser.add_argument("-v", "--verbose", action="store_true", help="print a line for each history")
    return parser


def _replayed(script: Script) -> int:
    outcome = play(script, keep=True)
    print("\n".join(outcome.trace), outcome.finding or "nothing found", f"digest {outcome.digest}", sep="\n")
    if outcome.folder:
        print(f"the folder of the history is {outcome.folder}")
    return int(outcome.finding is not None)


def _mutated(given: argparse.Namespace, names: list[str]) -> int:
    found = 0
    for name in names:
        found += _is_found(given, name)
    print(f"{found} of {len(names)} mutants found")
    return int(found < len(names))


_RAISED_BY_MUTANT = re.compile(r'mutants\.py", line \d+, in \w+\n(?:    .*\n)*\w*(Attribute|Type|Name|Key|Index)Error')


def _is_found(given: argparse.Namespace, name: str) -> bool:
    """Play with a fault in the product until a history finds it, which finds nothing without the fault."""
    histories, seconds = 0, 0.0
    most = _MUTANT_HISTORIES if given.histories is None else given.histories
    while histories < most:
        totals = run(
            Wanted(seed=given.seed, first=given.first + histories, seconds=10**9, histories=most - histories,
                   workers=given.workers, mutant=name, stops=True)
        )  # fmt: skip
        histories, seconds = histories + totals.histories, seconds + totals.seconds
        for outcome in totals.findings:
            if _RAISED_BY_MUTANT.search(outcome.finding or ""):
                print(f"{name:32} is broken: {outcome.kind}", flush=True)
                return False
            if play(outcome.script).finding is None:
                print(f"{name:32} {seconds:5.1f} s {histories:4} histories  {outcome.kind}", flush=True)
                return True
            print(f"{name:32} seed {outcome.script.seed} finds {outcome.kind} without it, too", flush=True)
    print(f"{name:32} {seconds:5.1f} s {histories:4} histories  NOT FOUND", flush=True)
    return False


def _tell(outcome: Outcome, is_verbose: bool) -> None:
    if is_verbose or outcome.finding is not None:
        how = outcome.kind or "ok"
        print(f"seed {outcome.script.seed}: {outcome.seams} seams, {outcome.seconds:.1f} s, {how}", flush=True)


def _report(outcome: Outcome, folder: Path) -> None:
    """Print a finding with the shortest script that still has it, and keep that script."""
    print(f"\nseed {outcome.script.seed}: {outcome.kind}\n{outcome.finding}")
    if outcome.kind == "died":
        return
    script = _shrunk(outcome)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{outcome.script.seed}.json"
    path.write_text(script.to_json())
    again = play(script)
    print("the end of its trace:", *again.trace, f"{again.finding}", sep="\n")
    print(f"its script is {path}; play it: python -m simulation --script {path}", flush=True)


def _shrunk(outcome: Outcome) -> Script:
    def fails(script: Script) -> dict[str, str] | None:
        played = play(script)
        return played.made if played.kind == outcome.kind else None

    try:
        return shrink(outcome.script, fails, seconds=_SHRINK_SECONDS)
    except ValueError:
        print("played again it does not end like this: a finding about the simulation itself")
        return outcome.script


def _tables(totals: Totals) -> None:
    """Print how often each fault met each verb, how verbs ended, and how often each check looked."""
    verbs = sorted({verb for *_, verb in totals.faults})
    print("\nfaults by verb")
    for fault in Fault:
        met = Counter[str]()
        for (kind, _, verb), count in totals.faults.items():
            met[verb] += count if kind == fault else 0
        print(f"  {fault:13} {sum(met.values()):7}  " + " ".join(f"{verb}:{met[verb]}" for verb in verbs if met[verb]))
    print("verbs")
    for verb in sorted({verb for verb, _ in totals.verbs}):
        ends = {end: count for (name, end), count in totals.verbs.most_common() if name == verb}
        print(f"  {verb:13} {sum(ends.values()):7}  " + " ".join(f"{end}:{count}" for end, count in ends.items()))
    print("checks  " + " ".join(f"{check}:{count}" for check, count in sorted(totals.checks.items())))


def _last_line(totals: Totals) -> str:
    rate = totals.histories / totals.seconds if totals.seconds else 0.0
    return (
        f"{totals.histories} histories, {totals.seams} seams, {sum(totals.faults.values())} faults,"
        f" {sum(totals.found.values())} findings of {len(totals.found)} kinds; {rate:.2f} histories a second"
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of a history
        os.execve(  # noqa: S606
            sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
