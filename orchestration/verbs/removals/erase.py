"""`erase`: the rows of one person leave a home, and a certificate says from where, and where they still are.

The regions are claimed together, so no run reads from one of them what is about to leave another. What is outside of
regions follows: tables of autonomous operators, pages, the registry, what Dagster was told. At the end everything that
lies in the home and among the tables is searched once more, and what is found then is in the certificate.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import InputMissing, UnknownName, UsageError
from drainmark.jobs.frames.tags import TAGS
from drainmark.jobs.graph.application import guess, nearest
from drainmark.jobs.protocol.persons import Person
from drainmark.jobs.protocol.records.triggers import FILE, PERIOD, RETRACTION
from drainmark.orchestration.dagster_assets.instance import instance_home
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace, drainmark_version

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.runtime.maintenance.erasure import Columns, Searched
    from drainmark.resources.erasure.notes import BlockedInput, Notes
    from drainmark.resources.settings import Settings

_BEYOND = (
    "backups, replicas, versions of objects that a bucket keeps, write-ahead logs of databases, blocks of disks",
    "rows and messages that readers, followers and functions took elsewhere",
    "numbers of aggregates without the named columns, to which the rows contributed",
)
"""What no erasure reaches; a certificate says so."""


def plan(
    workplace: Workplace, person: Person, regions: Sequence[str], *, passed: Collection[str] = (), is_whole: bool = True
) -> dict[str, Any]:
    """Return what an erasure would find now; nothing changes.

    Args:
        passed, is_whole: see `erase`.

    Raises:
        UnknownName: see `erase`.
    """
    from drainmark.jobs.runtime.maintenance.erasure import search, tables_of

    unsearched = _require_known(workplace, person, regions, passed, is_whole=is_whole)
    told = []
    for region in regions:
        store, history = workplace.store(region), workplace.history(region)
        found = search(store, store.checkpoint.rows(), tables_of(store, history), person)
        ids = {number for each in found for number in each.ids}
        told.append(
            {
                "region": region,
                "ids": sorted(ids),
                "tables": [_told(each, passed) for each in found],
                "inputs": [each.to_json() for each in _inputs(workplace, region, person, ids)],
            }
        )
    outside = _autonomous(workplace, person) if is_whole else []
    return {
        "dry_run": True,
        "columns": list(person.columns),
        "regions": told,
        "outside": outside,
        "rows": sum(table["rows"] for each in told for table in each["tables"]) + sum(t["rows"] for t in outside),
        "not_searched": unsearched,
    }


def _require_known(
    workplace: Workplace, person: Person, regions: Sequence[str], passed: Collection[str], *, is_whole: bool
) -> list[str]:
    """Refuse a person whom no table can show: nobody would be found, and it would seem that nobody is there.

    A table that stays as it is, and of which nobody can look into the values, may have any columns there. So may rows
    that an earlier attempt removed.

    Returns:
        what is to be said of tables in which nobody is looked for, for the certificate.

    Raises:
        UnknownName: no table has one of the columns, or no table all of them.
        UsageError: there is no home.
    """
    tables = _columns(workplace, regions, is_whole=is_whole)
    if not workplace.home.is_dir():
        raise UsageError(f"there is no folder {workplace.home}", remedy="name the home: --home PATH")
    if not tables:
        place = workplace.settings.tables_url or workplace.home
        return [f"tables: {place} has none yet, since no region has run; --home names another home"]
    known = frozenset[str]().union(*(each.names for each in tables))
    opaque = [each.table for each in tables if each.are_opaque]
    unknown = [each.column for each in person.conditions if not each.among(known)]
    unknown += [name for each in person.conditions for name in each.also if name not in known]
    if not unknown and any(person.columns_in(each.names) for each in tables):
        return []
    if set(opaque) & set(passed) or _is_begun(workplace, person, regions):
        without = [f"tables by {name!r}, a column that none of them has" for name in unknown]
        return without or [f"tables by {', '.join(person.columns)}, of which none has all"]
    if not unknown:
        msg = f"no table has all of the columns {', '.join(person.columns)}, so nobody would be found"
        raise UnknownName(msg, remedy="erase by the columns of one table at a time")
    shown = sorted(known.difference(TAGS))
    remedy = " ".join(filter(None, (guess(unknown[0], shown), f"known: {', '.join(shown)}")))
    inside = f"; or, if rows are inside of values, --except {opaque[0]}" if opaque else ""
    raise UnknownName(f"no table has a column {unknown[0]!r}, so nobody would be found", remedy=f"{remedy}{inside}")


def _is_begun(workplace: Workplace, person: Person, regions: Sequence[str]) -> bool:
    """Say whether an earlier attempt of the same erasure noted what it found."""
    from drainmark.resources.erasure.notes import ERASED, Notes
    from drainmark.resources.home_secret import home_key

    folders = [workplace.store(region).checkpoint.folder for region in regions]
    folders = [folder for folder in folders if any(folder.names(ERASED))]
    if not folders:
        return False
    name = person.digest(home_key(workplace.home, "erase"))
    return any(Notes(folder, name).has("found") for folder in folders)


def _columns(workplace: Workplace, regions: Sequence[str], *, is_whole: bool) -> list[Columns]:
    """Return the columns of each table, and of the pushed rows of each source, in which a person is looked for."""
    from drainmark.jobs.runtime.maintenance.erasure import Columns, columns_of_tables, tables_of
    from drainmark.resources.erasure import buffers, home

    found: list[Columns] = []
    for region in regions:
        store = workplace.store(region)
        found += columns_of_tables(store, tables_of(store, workplace.history(region)))
    for region in buffers.regions(workplace.home) if is_whole else regions:
        pushed = buffers.columns(workplace.home, region)
        found += [Columns(table=f"{buffers.BUFFERS}/{region}/{name}", names=names) for name, names in pushed.items()]
    if is_whole:
        found += [Columns(table=name, names=names) for name, names in home.autonomous_columns(workplace.tables).items()]
    return found


def passed_tables(workplace: Workplace, regions: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the tables that some names mean, as the plan prints them or as `show` takes them.

    Raises:
        UnknownName: a name means none: nobody must believe that it stays.
    """
    from drainmark.jobs.runtime.maintenance.erasure import tables_of
    from drainmark.resources.checkpoints.as_of import is_called
    from drainmark.resources.erasure import home

    if not names:
        return ()
    tables = [table for each in regions for table in tables_of(workplace.store(each), workplace.history(each))]
    known = {table.name for table in tables} | {name for _, name, _ in home.autonomous_tables(workplace.tables)}
    found = []
    for name in names:
        meant = [name] if name in known else [each for each in sorted(known) if is_called(each, name)]
        if not meant:
            raise UnknownName(f"--except {name!r}: there is no such table", remedy=nearest(name, sorted(known)))
        found += meant
    return tuple(dict.fromkeys(found))


def _told(found: Searched, passed: Collection[str]) -> dict[str, Any]:
    return {
        "table": found.table.name,
        "rows": found.shown.rows,
        "copies": found.kept.rows + found.dead.rows,
        "state": "passed" if found.table.name in passed else found.state,
    }


def _inputs(workplace: Workplace, region: str, person: Person, ids: Collection[int]) -> list[Any]:
    """Return the inputs of a region that held rows of a person, or that hold them now."""
    from drainmark.resources.erasure.notes import BlockedInput, inputs_of
    from drainmark.resources.erasure.search import judged

    history = workplace.history(region)
    by_rows = inputs_of(history, ids)
    known = {each.uri for each in by_rows}
    others = [
        BlockedInput.of(row)
        for row in (*history.states.values(), *history.withdrawn)
        if row.trigger_uri and row.trigger_uri not in known and row.trigger_kind != RETRACTION
    ]
    periods = [each if each.kind != PERIOD else _with_files(workplace, history, each, person) for each in by_rows]
    return [*periods, *judged(others, person)]


def _with_files(workplace: Workplace, history: RegionHistory, period: BlockedInput, person: Person) -> BlockedInput:
    """Return the input with the files in which the person may be; with all, if the person is found in none."""
    from drainmark.orchestration.discovery.state_inputs import files_behind
    from drainmark.resources.erasure.notes import BlockedInput, key_of
    from drainmark.resources.erasure.search import judged

    try:
        found = files_behind(workplace, history.states.rows.get(period.sequence_id))
    except InputMissing:  # its list is gone
        return period
    files = [BlockedInput(each.uri, key_of(each.identity), period.sequence_id, FILE) for each in found]
    return replace(period, files=[each.uri for each in judged(files, person)] or [each.uri for each in files])


def erase(
    workplace: Workplace, person: Person, regions: Sequence[str], *, passed: Collection[str] = (), is_whole: bool = True
) -> dict[str, Any]:
    """Let the rows of a person leave, and return the certificate; a repeated call goes on where another was killed.

    Args:
        passed: names of tables that stay as they are.
        is_whole: also what is outside of these regions.

    Raises:
        UnknownName: no table has one of the columns, or no table all of them; nothing was changed.
        EraseRefused: see `RegionErasure.carry_out`; of this region nothing was changed.
        Owned: a run has one of the regions; nothing was changed.
    """
    from drainmark.jobs.runtime.maintenance.erasure import RegionErasure
    from drainmark.resources.erasure.notes import Notes
    from drainmark.resources.home_secret import home_key

    unsearched = _require_known(workplace, person, regions, passed, is_whole=is_whole)
    name = person.digest(home_key(workplace.home, "erase"))
    noted: dict[str, Notes] = {}
    with ExitStack() as held:
        owners = {region: held.enter_context(owning(region_owner(workplace, region))) for region in regions}
        erasures = []
        for region, owner in owners.items():
            notes = noted[region] = Notes(owner.outside.store.checkpoint.folder, name)
            erasures.append(
                RegionErasure(
                    owner=owner, person=person, notes=notes, passed=frozenset(passed), together=frozenset(regions)
                )
            )
        for each in erasures:
            each.look()
        for each in erasures:
            each.note(partial(_inputs, workplace, each.owner.region, person))
        for each in erasures:
            each.carry_out()
        outside = _erase_outside(workplace, person, regions, passed) if is_whole else []
        told = [_region(region, noted[region], passed) for region in regions]
    left = _left(workplace, person) if is_whole else []
    for notes in noted.values():
        notes.write("end", {"at": world.now()})
    return _certificate(person, name, told, outside, left, unsearched=[*unsearched, *passed], is_whole=is_whole)


def _region(region: str, notes: Notes, passed: Collection[str]) -> dict[str, Any]:
    """Return what the records of all attempts say of a region."""
    tables: dict[str, dict[str, Any]] = {}
    ids: set[int] = set()
    inputs: dict[str, Any] = {}
    for found in notes.read("found"):
        ids.update(found["ids"])
        inputs.update({f"{each['key']} {each['uri']}": each for each in found["inputs"]})
        for table in found["tables"]:
            known = tables.setdefault(table["table"], {**table, "rows": 0, "copies": 0})
            known["rows"] = max(known["rows"], table["rows"])
            known["copies"] = max(known["copies"], table["copies"])
    removed = {(each["table"], each["path"]): each for some in notes.read("removed") for each in some}
    return {
        "region": region,
        "ids": sorted(ids),
        "tables": [*tables.values()],
        "inputs": [*inputs.values()],
        "removed": [removed[key] for key in sorted(removed)],
    }


def _certificate(
    person: Person,
    name: str,
    regions: Sequence[Mapping[str, Any]],
    outside: Sequence[Mapping[str, Any]],
    left: Sequence[Mapping[str, Any]],
    *,
    unsearched: Sequence[str],
    is_whole: bool,
) -> dict[str, Any]:
    skipped = [table["table"] for each in regions for table in each["tables"] if table["state"] == "skipped"]
    not_searched = [*unsearched, *_BEYOND]
    if not person.is_text:
        not_searched.append(
            "free text, messages, logs and files outside of tables: a value is too short to be told there"
        )
    if not is_whole:
        not_searched.append("all that is outside of the regions named")
    return {
        "dry_run": False,
        "at": dt.datetime.fromtimestamp(world.now(), dt.UTC).isoformat(),
        "drainmark": drainmark_version(),
        "person": name,
        "columns": list(person.columns),
        "regions": [*regions],
        "outside": [*outside],
        "without_columns": skipped,
        "inputs": [{"region": each["region"], **found} for each in regions for found in each["inputs"]],
        "found_afterwards": [*left],
        "not_searched": not_searched,
    }


def _erase_outside(
    workplace: Workplace, person: Person, regions: Sequence[str], passed: Collection[str]
) -> list[dict[str, Any]]:
    from drainmark.resources.erasure import buffers, home

    done = []
    for folder, table, name in home.autonomous_tables(workplace.tables):
        found = home.erase_autonomous(folder, table, name, person) if table not in passed else None
        if found is not None:
            done.append(found)
    for region in sorted(buffers.regions(workplace.home) - set(regions)):
        rows = buffers.held(workplace.home, region, person)
        buffers.erase(workplace.home, region, person)
        done += [{"table": f"{buffers.BUFFERS}/{region}/{name}", "rows": count} for name, count in rows.items()]
    if person.is_text:
        done += home.erase_texts(workplace.home, _of_dagster(workplace.settings), person)
        if workplace.has_registry:
            done += home.erase_registry(workplace.registry.database.engine, person)
    return done


def _of_dagster(settings: Settings) -> list[Path]:
    """Return the folders of Dagster's events and logs; beside those of an instance elsewhere may be anything."""
    folders, elsewhere = [settings.dagster_home], instance_home(settings)
    if elsewhere not in folders:
        folders += [elsewhere / name for name in ("history", "logs", "schedules")]
        folders += elsewhere.glob("storage/*/compute_logs")
    return folders


def _autonomous(workplace: Workplace, person: Person) -> list[dict[str, Any]]:
    from drainmark.resources.erasure import home

    found = (
        home.search_autonomous(folder, table, person) for folder, table, _ in home.autonomous_tables(workplace.tables)
    )
    return [each for each in found if each is not None and each["rows"]]


def _left(workplace: Workplace, person: Person) -> list[dict[str, Any]]:
    """Return the places of home and tables in which the person is found now."""
    from drainmark.resources.erasure.search import places
    from drainmark.resources.storage.folder import LocalFolder

    home, tables = LocalFolder(workplace.home), workplace.tables
    is_home = isinstance(tables, LocalFolder) and tables.path == workplace.home
    return [*places(home, person), *(() if is_home else places(tables, person))]


def regions_of(workplace: Workplace, region: str | None) -> tuple[str, ...]:
    """Return the regions of an erasure: all that have run here, or one."""
    from drainmark.orchestration.workplace.declaration import find_region

    return (find_region(workplace, region),) if region is not None else workplace.own_regions()


def write_certificate(path: Path, certificate: Mapping[str, Any]) -> None:
    """Write a certificate to a new file."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(certificate, file, indent=2, ensure_ascii=False)
        file.write("\n")
