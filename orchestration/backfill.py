"""`backfill`: files that the scan would not take become triggers, each identity once (design.md §6)."""

from __future__ import annotations

import datetime as dt
import glob
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import RegistryLost, UsageError
from jobs.operators.directory_scan import DirectoryScan
from jobs.protocol.triggers import NewTrigger, TriggerStatus
from orchestration.assembly import Workplace, source_folder, source_of
from orchestration.declared import load_region

ORIGIN = "backfill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which files.

    Attributes:
        pattern: a glob (`**` goes below), or a folder, which means all files below it.
        since, until: bounds of the modification time, the first included.
        output: output of the source that they belong to; needed where it has several and the name does not tell.
    """

    pattern: str
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    output: str | None = None


def queue(workplace: Workplace, region: str, wanted: Wanted, *, dry_run: bool = False) -> dict[str, Any]:
    """Queue files as pending triggers, by name; return the counts.

    `committed`, `pending` and `passed` (skipped, refused, missing) are identities that are known and stay as they are.

    Raises:
        UsageError: nothing matches, or it is not clear to which output a file belongs.
        RegistryLost: the registry does not know what is committed.
    """
    history = workplace.history(region)
    if history.states and workplace.registry.is_empty(region):
        msg = f"the registry knows nothing of {region!r}, its checkpoint table does"
        raise RegistryLost(msg, remedy="rebuild it first: drainmark doctor --repair")
    found = load_region(workplace, region)
    source = source_of(found[1]) if found is not None else None
    folder = source_folder(workplace, source) if source is not None else None
    from jobs.runtime.scanning import uri_of

    paths = _matching(wanted)
    if not paths:
        remedy = "quote the glob, so that the shell leaves it alone"
        raise UsageError(f"no file matches {wanted.pattern!r}", remedy=remedy)
    _wait_until_settled(paths, source.scan.settle if source is not None else 0.0)
    counts: Counter[str] = Counter()
    refused: list[dict[str, str]] = []
    new: list[NewTrigger] = []
    for path in paths:
        trigger = _trigger(path, wanted, source.scan if source is not None else None, folder)
        if isinstance(trigger, str):
            refused.append({"file": uri_of(path), "reason": trigger})
            continue
        status = _known_as(workplace, region, trigger)
        counts[status] += 1
        if status == "queued":
            new.append(trigger)
    if not dry_run:
        workplace.registry.add_triggers(region, new)
    return {
        "region": region,
        "matched": len(paths),
        "queued": len(new),
        "committed": counts["committed"],
        "pending": counts["pending"],
        "passed": counts["passed"],
        "refused": refused,
        "files": [trigger.uri for trigger in new],
        "dry_run": dry_run,
        "pending_triggers": workplace.registry.pending_count(region),
    }


def _matching(wanted: Wanted) -> list[str]:
    pattern = f"{wanted.pattern}/**" if Path(wanted.pattern).is_dir() else wanted.pattern
    names = (os.path.abspath(name) for name in glob.iglob(pattern, recursive=True, include_hidden=True))
    return sorted(name for name in names if not Path(name).is_dir() and _is_between(name, wanted))


def _is_between(path: str, wanted: Wanted) -> bool:
    try:
        modified = os.stat(path).st_mtime
    except OSError:
        return True  # refused later, with the reason
    since, until = wanted.since, wanted.until
    return (since is None or modified >= since.timestamp()) and (until is None or modified < until.timestamp())


def _wait_until_settled(paths: list[str], settle: float) -> None:
    """Give files that were just written the time that the source wants to see them unchanged."""
    newest = max(_modified(paths), default=0.0)
    age = time.time() - newest
    if 0 <= age < settle:
        time.sleep(settle - age)


def _modified(paths: list[str]) -> Iterator[float]:
    for path in paths:
        try:
            yield os.stat(path).st_mtime
        except OSError:
            continue


def _trigger(path: str, wanted: Wanted, scan: DirectoryScan | None, folder: Path | None) -> NewTrigger | str:
    """Return a file's trigger, or why it cannot be one."""
    from jobs.runtime.scanning import identity_key, identity_of, uri_of

    try:
        facts = os.stat(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(facts.st_mode):
        return "is no regular file"
    if not os.access(path, os.R_OK):
        return "no permission to read"
    identity = identity_of(facts)
    return NewTrigger(
        uri=uri_of(path), output=_output_of(path, wanted, scan, folder), identity=identity,
        identity_key=identity_key(identity), size_bytes=facts.st_size, origin=ORIGIN,
    )  # fmt: skip


def _output_of(path: str, wanted: Wanted, scan: DirectoryScan | None, folder: Path | None) -> str:
    outputs = tuple(scan.outputs or ()) if scan is not None else ()
    if wanted.output is not None:
        if scan is not None and wanted.output not in (outputs or ("",)):
            known = ", ".join(outputs) or "none"
            raise UsageError(f"the source has no output {wanted.output!r}", remedy=f"known: {known}")
        return wanted.output
    if scan is None or not outputs:
        return ""
    relative = os.path.relpath(path, folder) if folder is not None else path
    found = scan.output_of(relative)
    if found is None:
        raise UsageError(f"it is not clear to which output {path} belongs", remedy=f"--output {' | '.join(outputs)}")
    return found


def _known_as(workplace: Workplace, region: str, trigger: NewTrigger) -> str:
    for known in workplace.registry.by_uri(region, trigger.uri):
        if known.identity_key == trigger.identity_key:
            if known.status is TriggerStatus.COMMITTED:
                return "committed"
            return "pending" if known.status is TriggerStatus.PENDING else "passed"
    return "queued"
