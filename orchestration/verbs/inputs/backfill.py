"""`backfill`: files that the scan would not take become triggers, each identity once."""

from __future__ import annotations

import datetime as dt
import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import ReplaceRefused, UsageError
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.history import RegionHistory, retracted_uris
from drainmark.jobs.protocol.records.addresses import address_of, is_object, object_uri, prefix_of
from drainmark.jobs.protocol.records.triggers import AGAIN, BACKFILL, GAVE_WAY, NewTrigger, TriggerStatus, file_key
from drainmark.jobs.regions.formatting import said_of
from drainmark.jobs.runtime.commit.replacement import require_replaceable
from drainmark.orchestration.discovery.scan_recording import replacing
from drainmark.orchestration.discovery.state_inputs import is_quarantined_whole
from drainmark.orchestration.verbs.rewinds.readers import cascade_flag
from drainmark.orchestration.workplace.declaration import declared, load_region
from drainmark.orchestration.workplace.region_sources import source_folder, source_of
from drainmark.orchestration.workplace.workplace import Workplace, require_known

_COMMANDS = 10
"""Number of files that one remedy names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The files to queue.

    Attributes:
        pattern: the name of a file; or of a folder, which means all files below it; or, if nothing has that very name,
            a glob (`**` goes below); also `s3://BUCKET/…`.
        files: addresses of files, instead of a pattern.
        since, until: bounds of the modification time, inclusive and exclusive.
        output: output of the source that they belong to; needed if it has several and the name does not tell.
        again: also files that are committed, whose new states replace the present ones, and files that were retracted.
    """

    pattern: str = ""
    files: Sequence[str] = ()
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    output: str | None = None
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """Files that become pending triggers, by name; `facts` are the counts, see `plan_queue`.

    Attributes:
        settle: seconds that a file of this machine must be unchanged before it is queued.
    """

    region: str
    triggers: Sequence[NewTrigger]
    facts: dict[str, Any]
    settle: float = 0.0

    @property
    def wait(self) -> float:
        """Return for how many seconds `carry_out` waits, as files were written a moment ago."""
        ages = (world.now() - each.identity["mtime_ns"] / 1e9 for each in self.triggers if not is_object(each.uri))
        return max((self.settle - age for age in ages if 0 <= age < self.settle), default=0.0)

    @property
    def notice(self) -> str:
        """Return what to say before `carry_out`, "" for nothing."""
        wait = self.wait
        return f"{self.region}: waits {wait:.1f} s, as files were written a moment ago" if wait else ""

    def carry_out(self, workplace: Workplace) -> dict[str, Any]:
        """Queue them; return the counts. A file that another process queued meanwhile is not queued twice.

        Raises:
            UsageError: all of them were still written to while it waited; nothing was queued.
        """
        triggers, facts = self.triggers, self.facts
        if wait := self.wait:
            world.sleep(wait)
            left = self._unsettled(workplace)
            triggers = [trigger for trigger in triggers if trigger.uri not in left]
            if not triggers:
                uri, why = next(iter(left.items()))
                raise UsageError(f"{uri} {why}", remedy="repeat the command when nobody writes it any more")
            facts = _less(facts, left) if left else facts
        workplace.registry.triggers.add(self.region, triggers)
        return {**facts, "dry_run": False, "pending_triggers": workplace.registry.pending_count(self.region)}

    def _unsettled(self, workplace: Workplace) -> dict[str, str]:
        """Return the files that are not as they were planned, each with the reason."""
        local = [(each.uri, each.identity) for each in self.triggers if not is_object(each.uri)]
        gone, changed = workplace.inputs.lost(local)
        return {**dict.fromkeys(gone, "is not there any more"), **dict.fromkeys(changed, "is being written")}


def _less(facts: Mapping[str, Any], left: Mapping[str, str]) -> dict[str, Any]:
    """Return the counts of a queueing without some files, which are refused for a reason each."""
    files = [uri for uri in facts["files"] if uri not in left]
    kept = {
        name: [each for each in facts[name] if name == "refused" or each["file"] not in left]
        for name in ("replaces", "beside", "refused")
    }
    kept["refused"] += [{"file": uri, "reason": reason} for uri, reason in left.items()]
    return {**facts, **kept, "files": files, "queued": len(files), "replaced": len(kept["replaces"])}


def plan_queue(workplace: Workplace, region: str, wanted: Wanted) -> Queueing:
    """Return the files that would be queued, with the counts; change nothing.

    In its facts, `committed`, `pending` and `passed` (skipped, refused, retracted) count identities that are known and
    stay unchanged. `replaced` counts the files that are read again, as retracted ones are with `again`; `replaces`
    lists those with a state in force, which the new state is to replace, each with the id of its newest state. Of
    files that changed since their state, `on_change` of the source decides as in a scan: `beside` lists in the same way
    those whose rows stay beside the new ones ("reprocess"), `ignored` those that are left out ("ignore").

    Raises:
        ReplaceRefused: files are to be replaced in a region that keeps state; nothing was queued.
        UsageError: no file matches, or it is not clear to which output a file belongs, or a committed file changed and
            `on_change` is "halt".
        RegistryLost: the registry does not know the committed files.
    """
    history = workplace.history(region)
    require_known(workplace, region, history)
    found = load_region(workplace, region)
    source = source_of(found[1]) if found is not None else None
    folder = source_folder(workplace, source) if source is not None else None
    matched = _matched(workplace, wanted, source.scan if source is not None else None, folder)
    if not matched:
        raise _none_matched(wanted)
    counts: Counter[str] = Counter()
    refused: list[dict[str, str]] = []
    new: list[NewTrigger] = []
    newest = history.newest_by_uri({uri for uri, _ in matched})
    retracted = retracted_uris(history)
    for uri, trigger in matched:
        if isinstance(trigger, str):
            refused.append({"file": uri, "reason": trigger})
            continue
        is_replacing = wanted.again and (uri in newest or uri in retracted)
        status, wanted_trigger = _judged(workplace, region, trigger, is_replacing=is_replacing)
        counts["passed" if status == "committed" and uri in retracted else status] += 1
        if status in ("queued", "replaced"):
            new.append(wanted_trigger)
    replaces, changed = _with_states(new, newest, history)
    if replaces:
        _require_replaceable(workplace, history, region, replaces)
    policy = source.scan.on_change if source is not None else "halt"
    if changed and policy == "halt":
        raise _changed_since(workplace, history, region, changed, wanted.output)
    beside, ignored = (changed, []) if policy == "reprocess" else ([], changed)
    left_out = {each["file"] for each in ignored}
    new = [trigger for trigger in new if trigger.uri not in left_out]
    facts = {
        "region": region,
        "matched": len(matched),
        "queued": len(new),
        "replaced": len(replaces),
        "replaces": replaces,
        "beside": beside,
        "ignored": ignored,
        "committed": counts["committed"],
        "pending": counts["pending"],
        "passed": counts["passed"],
        "refused": refused,
        "files": [trigger.uri for trigger in new],
        "dry_run": True,
        "pending_triggers": workplace.registry.pending_count(region),
    }
    settle = source.scan.settle if source is not None else 0.0
    return Queueing(region=region, triggers=new, facts=facts, settle=settle)


def _with_states(
    new: Sequence[NewTrigger], newest: Mapping[str, int], history: RegionHistory
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return those of some files with rows of an earlier state: whose new state replaces it, and all that changed."""
    again = [trigger for trigger in new if trigger.uri in newest]
    replaces = [trigger.uri for trigger in again if AGAIN in trigger.identity]
    changed = [trigger.uri for trigger in again if AGAIN not in trigger.identity]
    changed = [uri for uri in changed if not is_quarantined_whole(history.states[newest[uri]])]
    told = [[{"file": uri, "sequence_id": newest[uri]} for uri in uris] for uris in (replaces, changed)]
    return told[0], told[1]


def _require_replaceable(
    workplace: Workplace, history: RegionHistory, region: str, states: Sequence[Mapping[str, Any]]
) -> None:
    ids = [each["sequence_id"] for each in states]
    horizon = declared(workplace, region).rewind_horizon
    require_replaceable(region, history, ids, horizon, cascade_flag(workplace, region))


def _changed_since(
    workplace: Workplace,
    history: RegionHistory,
    region: str,
    changed: Sequence[Mapping[str, Any]],
    output: str | None,
) -> UsageError:
    """Return the error of files that changed since their states; its remedy takes the new ones in their place."""
    first, others = changed[0], len(changed) - 1
    more = f", as {said_of(others, 'other file', 'are', 'is')}" if others else ""
    was = f"{first['file']} was committed as {first['sequence_id']}"
    msg = f"{was} and is another file now{more}: their rows would count twice"
    try:
        _require_replaceable(workplace, history, region, changed)
        commands = (again_command(region, each["file"], output) for each in changed[:_COMMANDS])
        remedy = f"to read it in place of the old one: {' && '.join(commands)}"
    except ReplaceRefused as error:
        remedy = f"to read the new one: {error.remedy}"
    return UsageError(msg, remedy=f'{remedy}; or on_change="ignore" or "reprocess" at the source')


def again_command(region: str, uri: str, output: str | None) -> str:
    """Return the command that reads a file anew in place of its newest state.

    Args:
        output: of the source, if the file's name does not tell it.
    """
    of = f" --output {shell_word(output)}" if output else ""
    return f"drainmark backfill {region} --input {shell_word(pattern_of(uri))}{of} --again"


def pattern_of(uri: str) -> str:
    """Return the pattern that means one file only."""
    from drainmark.jobs.scan.folder import path_of

    return glob.escape(uri if is_object(uri) else path_of(uri))


def _none_matched(wanted: Wanted) -> UsageError:
    if wanted.files:
        return UsageError(
            f"none of the files is there any more: {', '.join(wanted.files[:3])}", remedy="bring them back"
        )
    place = "bucket and prefix" if is_object(wanted.pattern) else f"folder and pattern, which count from {Path.cwd()}"
    return UsageError(f"no file matches {wanted.pattern!r}", remedy=f"check {place}")


def _matched(
    workplace: Workplace, wanted: Wanted, scan: DirectoryScan | None, folder: str | None
) -> list[tuple[str, NewTrigger | str]]:
    """Return (uri, trigger or the reason against one) of the wanted files."""
    from drainmark.jobs.scan.folder import path_of

    if wanted.files:
        names = (file if is_object(file) else path_of(file) for file in wanted.files)
        each = (replace(wanted, pattern=glob.escape(name), files=()) for name in names)
        found = [_matched(workplace, one, scan, folder) for one in each]
        gone = ([(file, "it is not there any more")] for file in wanted.files)
        return [one for some, none in zip(found, gone, strict=True) for one in some or none] if any(found) else []
    return _objects(workplace, wanted, scan, folder) if is_object(wanted.pattern) else _files(wanted, scan, folder)


def _files(wanted: Wanted, scan: DirectoryScan | None, folder: str | None) -> list[tuple[str, NewTrigger | str]]:
    """Return (uri, trigger or the reason against one) of the wanted files of this machine, by name."""
    from drainmark.jobs.scan.folder import uri_of

    unlisted: list[tuple[str, str]] = []
    paths = [path for path in _matching(wanted.pattern, unlisted) if _is_between(path, wanted)]
    found = [(uri_of(_as_scanned(path, folder)), _trigger(path, wanted, scan, folder)) for path in paths]
    return [*found, *unlisted]


def _as_scanned(path: str, folder: str | None) -> str:
    """Return the path that a scan gives to a file: its folder may be named by a link or by `..`, there or here."""
    if folder is None or is_object(folder):
        return path
    where, name = os.path.split(path)
    below = os.path.relpath(os.path.realpath(where), os.path.realpath(folder))
    if below.split(os.sep)[0] == os.pardir:
        return path
    return os.path.join(folder, *([] if below == os.curdir else [below]), name)


def _objects(
    workplace: Workplace, wanted: Wanted, scan: DirectoryScan | None, folder: str | None
) -> list[tuple[str, NewTrigger | str]]:
    """Return (uri, trigger or the reason against one) of the wanted objects, by key."""
    from drainmark.jobs.scan.bucket_objects import trigger_of_object

    bucket, _ = address_of(wanted.pattern)
    below = prefix_of(folder) if folder is not None and is_object(folder) else (bucket, "")
    found: list[NewTrigger] = []
    refused: list[tuple[str, NewTrigger | str]] = []
    for facts, reason in workplace.inputs.matching(wanted.pattern):
        if not _is_within(facts.modified, wanted):
            continue
        if reason is not None:
            refused.append((object_uri(bucket, facts.key), reason))
        else:
            relative = facts.key.removeprefix(below[1]) if below[0] == bucket else facts.key
            output = _output_of(object_uri(bucket, facts.key), relative, wanted, scan)
            found.append(trigger_of_object(bucket, facts, output=output, origin=BACKFILL))
    return [(trigger.uri, trigger) for trigger in workplace.inputs.with_versions(found)] + refused


def _matching(pattern: str, unlisted: list[tuple[str, str]]) -> list[str]:
    """Return the paths of the files that a pattern means, sorted; add to a list the folders that hide some of them."""
    from drainmark.jobs.scan.findings import ScanFindings
    from drainmark.jobs.scan.folder import note_unlisted, walk

    whole, found = os.path.abspath(pattern), ScanFindings(world.now())
    if os.path.isdir(pattern):
        paths = walk(Path(whole), found, recursive=True)
    elif os.path.lexists(pattern):
        paths = iter([whole])
    else:
        paths = (os.path.abspath(name) for name in _globbed(pattern) if not os.path.isdir(name))
        for folder in _searched(pattern):
            try:
                os.scandir(folder).close()
            except OSError as error:
                note_unlisted(folder, error, found)
    try:
        names = sorted(paths)
    except OSError as error:  # the folder itself
        names = []
        note_unlisted(whole, error, found)
    unlisted += found.refused
    return names


def _searched(pattern: str) -> Iterator[str]:
    """Yield the folders in which a glob looks for names: it passes over those that it may not list."""
    parts, seen = Path(pattern).parts, set[str]()
    for end in range(_plain_parts(parts), len(parts) + (parts[-1:] == ("**",))):
        folders = {os.path.abspath(name) for name in _globbed(os.path.join(*parts[:end], "") if end else "./")}
        yield from sorted(folders - seen)
        seen |= folders


def _globbed(pattern: str) -> Iterator[str]:
    return glob.iglob(pattern, recursive=True, include_hidden=True)


def _plain_parts(parts: Sequence[str]) -> int:
    """Return how many parts of a pattern come before its first wildcard, or before its last part."""
    return next((place for place, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)


def _parts_named(pattern: str) -> int:
    """Return how many parts the absolute path of the folder has that a pattern names; links are allowed in it."""
    whole = Path(os.path.abspath(pattern)).parts
    if os.path.isdir(pattern):
        return len(whole)
    if os.path.lexists(pattern):
        return len(whole) - 1
    parts = Path(pattern).parts
    return len(Path(os.path.abspath(os.path.join("", *parts[: _plain_parts(parts)]))).parts)


def _linked_folder(path: str, wanted: Wanted) -> str | None:
    """Return the link to a folder through which a glob found a file; before the first wildcard links are allowed."""
    named = _parts_named(wanted.pattern)
    below = [folder for folder in reversed(Path(path).parents) if len(folder.parts) > named]
    return next((str(folder) for folder in below if folder.is_symlink()), None)


def _is_between(path: str, wanted: Wanted) -> bool:
    try:
        modified = os.stat(path).st_mtime
    except OSError:
        return True  # refused later, with the reason
    return _is_within(modified, wanted)


def _is_within(modified: float, wanted: Wanted) -> bool:
    since, until = wanted.since, wanted.until
    return (since is None or modified >= since.timestamp()) and (until is None or modified < until.timestamp())


def _trigger(path: str, wanted: Wanted, scan: DirectoryScan | None, folder: str | None) -> NewTrigger | str:
    """Return a file's trigger, or the reason against one."""
    from drainmark.jobs.scan.folder import facts_of, identity_key, identity_of, uri_of

    facts = facts_of(path, follow_links=scan is not None and scan.follow_links)
    if isinstance(facts, str):
        return facts
    if (linked := _linked_folder(path, wanted)) is not None:
        return f"lies behind a link to a folder, {linked}"
    identity, named = identity_of(facts), _as_scanned(path, folder)
    relative = os.path.relpath(named, folder) if folder is not None and not is_object(folder) else path
    return NewTrigger(
        uri=uri_of(named),
        output=_output_of(path, relative, wanted, scan),
        identity=identity,
        identity_key=identity_key(identity),
        size_bytes=facts.st_size,
        origin=BACKFILL,
    )


def _output_of(path: str, relative: str, wanted: Wanted, scan: DirectoryScan | None) -> str:
    outputs = tuple(scan.outputs or ()) if scan is not None else ()
    if wanted.output is not None:
        if scan is not None and wanted.output not in (outputs or ("",)):
            known = ", ".join(outputs) or "none"
            raise UsageError(f"the source has no output {wanted.output!r}", remedy=f"known: {known}")
        return wanted.output
    if scan is None or not outputs:
        return ""
    found = scan.output_of(relative)
    if found is None:
        raise UsageError(f"it is not clear to which output {path} belongs", remedy=f"--output {' | '.join(outputs)}")
    return found


def _known_as(workplace: Workplace, region: str, trigger: NewTrigger, *, is_replacing: bool) -> str:
    for known in workplace.registry.triggers.by_uri(region, trigger.uri):
        if file_key(known.identity_key) == trigger.identity_key and known.status not in GAVE_WAY:
            if known.status is TriggerStatus.COMMITTED:
                return "committed"
            if known.status is TriggerStatus.PENDING:
                return "pending"
            if not (is_replacing and AGAIN in known.identity):  # a replacement that was skipped may be asked for anew
                return "passed"
    return "queued"


def _judged(workplace: Workplace, region: str, trigger: NewTrigger, *, is_replacing: bool) -> tuple[str, NewTrigger]:
    """Return the name of a file's count, and its trigger: a replacing one if asked for and not pending already."""
    status = _known_as(workplace, region, trigger, is_replacing=is_replacing)
    if not is_replacing or status not in ("queued", "committed"):
        return status, trigger
    known = workplace.registry.triggers.by_uri(region, trigger.uri)
    waiting = (other for other in known if other.status is TriggerStatus.PENDING and AGAIN in other.identity)
    if any(file_key(other.identity_key) == trigger.identity_key for other in waiting):
        return "pending", trigger
    return "replaced", replacing(trigger, known)
