"""A region's declaration by its name: from the note of its last run, or else from its code; and texts of SQL operators.

A run and a scan leave a note in the registry (a cursor named `NOTE`), so that `status`, `reset` and `backfill` know
the parameters of an application in a file of the user. The note is lost with the registry; then the code takes its
place if it is found, else defaults do.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError, UnknownName, UsageError
from drainmark.jobs.graph.annotations import MAX_CONSECUTIVE_RESET_ATTEMPTS, REWIND_HORIZON
from drainmark.jobs.graph.application import Application
from drainmark.orchestration.workplace.application_identity import NOTE, PROJECT, note_file
from drainmark.orchestration.workplace.workplace import Opened, Workplace, looks, open_in_time

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.resources.registry.queries import Looks
    from drainmark.resources.settings import Settings

logger = logging.getLogger(__name__)

LEFT = "@left"
"""Name of the cursor that says whether a region left the code; no operator can have this name."""

_HAS_LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The facts about a region that its code declares.

    Attributes:
        reference: opens the application; None if unknown.
        folder: the folder scanned last; None if unknown.
        max_consecutive_reset_attempts: count.
        rewind_horizon: number of ids.
        alignment: of a region of several stages, else None.
    """

    reference: str | None = None
    folder: str | None = None
    max_consecutive_reset_attempts: int = MAX_CONSECUTIVE_RESET_ATTEMPTS
    rewind_horizon: int = REWIND_HORIZON
    alignment: str | None = None


def remember(workplace: Workplace, opened: Opened, region: RegionPlan) -> None:
    """Leave the note of a region's declaration in the registry.

    Raises:
        UsageError: the region belongs to another file, or its inputs have other paths than before; see
            `application_identity` and `moved_inputs`.
    """
    from drainmark.jobs.graph.application import shipped_applications
    from drainmark.orchestration.workplace.moved_inputs import note_names, require_inputs_in_place
    from drainmark.orchestration.workplace.region_sources import shown_folder

    reference = opened.reference
    if opened.application.origin and reference not in shipped_applications():
        reference = str(Path(opened.application.origin).absolute()) if reference.endswith(".py") else reference
    note: dict[str, Any] = {
        "reference": reference,
        "folder": shown_folder(workplace, region),
        "max_consecutive_reset_attempts": region.parameters.max_consecutive_reset_attempts,
        "rewind_horizon": region.parameters.rewind_horizon,
    }
    if region.channels:
        note["alignment"] = region.parameters.alignment
    require_inputs_in_place(workplace, region)
    note_names(workplace, region)
    note_file(workplace, region)
    text = json.dumps(note, sort_keys=True)
    if workplace.registry.load_cursor(region.name, NOTE) != text:
        workplace.registry.save_cursor(region.name, NOTE, text)
    _note_left(workplace, opened, region.name)


def _note_left(workplace: Workplace, opened: Opened, region: str) -> None:
    """Note that the code has a region, and which it has no more, so that `status` need not open the code."""
    registry, declares = workplace.registry, {each.name for each in opened.plan.regions}
    if has_left(registry, region):
        registry.save_cursor(region, LEFT, "")
    others = (name for name in recorded_regions(registry) if name.partition("/")[0] == opened.plan.name)
    for name in (name for name in others if name not in declares and not has_left(registry, name)):
        if _is_of(_noted(registry, name), opened.reference):
            registry.save_cursor(name, LEFT, _HAS_LEFT)


def has_left(registry: Looks | None, region: str) -> bool:
    """Say whether the code that was run or scanned last no longer has a region."""
    return registry is not None and registry.load_cursor(region, LEFT) == _HAS_LEFT


def is_declared(workplace: Workplace, region: str) -> bool:
    """Say whether the code of a region's application has the region now.

    Raises:
        UsageError: code that may have it cannot be opened, so nobody can say.
    """
    for candidate in _candidates(workplace, region, None, None):
        if candidate.endswith(".py") and not Path(candidate).is_file():
            continue
        try:
            opened = open_in_time(workplace.settings, candidate)
        except UnknownName:
            continue
        except (DrainmarkError, ImportError, OSError, SyntaxError) as error:
            msg = f"{candidate} cannot be opened, so nobody can say whether {region} left its code: {error}"
            raise UsageError(msg, remedy="mend the code first") from error
        if any(found.name == region for found in opened.plan.regions):
            return True
    return False


def declared_of(region: RegionPlan, reference: str | None = None) -> Declared:
    """Return the declaration of a compiled region."""
    return Declared(
        reference=reference,
        max_consecutive_reset_attempts=region.parameters.max_consecutive_reset_attempts,
        rewind_horizon=region.parameters.rewind_horizon,
        alignment=region.parameters.alignment if region.channels else None,
    )


def noted(workplace: Workplace, region: str, registry: Looks | None = None) -> Declared | None:
    """Return the declaration that the last run or scan of a region left in the registry; None without one.

    Args:
        registry: the result of `looks`, if the caller has it.
    """
    registry = registry or looks(workplace)
    note = _noted(registry, region) if registry is not None else None
    if registry is None or note is None or note.reference is None or not note.reference.endswith(".py"):
        return note
    root = registry.load_cursor(region, PROJECT)
    return replace(note, reference=_in_its_project(Path(note.reference), root, workplace.settings.project_root))


def _in_its_project(file: Path, before: str | None, root: Path) -> str:
    """Return where a file is that may have moved with its project."""
    if before is None or file.is_file() or not file.is_relative_to(before):
        return str(file)
    moved = root / file.relative_to(before)
    return str(moved if moved.is_file() else file)


def _noted(registry: Looks, region: str) -> Declared | None:
    note = registry.load_cursor(region, NOTE)
    return Declared(**json.loads(note)) if note is not None else None


def noted_folder(workplace: Workplace, region: str) -> str | None:
    """Return the folder that the last scan of a region looked at; None if it is unknown."""
    note = noted(workplace, region)
    return note.folder if note is not None else None


def known_from(workplace: Workplace, reference: str) -> list[str]:
    """Return the regions of an application that are known from tables or notes, without its code, sorted."""
    registry, name = looks(workplace), name_of(reference)
    seen = {*workplace.known_regions(), *(recorded_regions(registry) if registry is not None else ())}
    ours = sorted(region for region in seen if region.partition("/")[0] == name)
    return [region for region in ours if _is_of(noted(workplace, region), reference)]


def _is_of(note: Declared | None, reference: str) -> bool:
    """Say whether a region belongs to this application, and not to another one of the same name."""
    if note is None or note.reference is None or not note.reference.endswith(".py"):
        return True
    return not reference.endswith(".py") or Path(note.reference).resolve() == Path(reference).resolve()


def declared(workplace: Workplace, region: str, registry: Looks | None = None) -> Declared:
    """Return a region's declaration: from the note of its last run or scan, else its code, else the defaults.

    Args:
        registry: see `noted`.
    """
    if (note := noted(workplace, region, registry)) is not None:
        return note
    found = load_region(workplace, region, registry=registry)
    return declared_of(found[1], found[0].reference) if found is not None else Declared()


def load_region(
    workplace: Workplace, region: str, *, reference: str | None = None, registry: Looks | None = None
) -> tuple[Opened, RegionPlan] | None:
    """Return the code of a region; None if it cannot be found or does not compile.

    The search order: `reference`, the note of the last run, the shipped applications, those of the settings.

    Args:
        registry: see `noted`.
    """
    for candidate in _candidates(workplace, region, reference, registry):
        try:
            opened = open_in_time(workplace.settings, candidate)
            return opened, opened.region(region)
        except (DrainmarkError, ImportError, OSError, SyntaxError):
            continue
    return None


def _candidates(workplace: Workplace, region: str, reference: str | None, registry: Looks | None) -> list[str]:
    from drainmark.jobs.graph.application import shipped_applications

    application = region.partition("/")[0]
    found = [reference] if reference else []
    registry = registry or looks(workplace)
    note = noted(workplace, region, registry)
    if note is not None and note.reference is not None:
        found.append(note.reference)
    if application in shipped_applications():
        found.append(application)
    found += [item for item in configured_applications(workplace.settings) if name_of(item) == application]
    return list(dict.fromkeys(found))  # an application that hangs must not be opened twice


def declared_operators(workplace: Workplace, region: str) -> frozenset[str]:
    """Return the names of all operators of a region's application, which may no longer have the region.

    Raises:
        UnknownName: its code cannot be found.
        DeclarationError, ImportError, SyntaxError: its code does not compile.
    """
    for candidate in _candidates(workplace, region, None, None):
        try:
            opened = open_in_time(workplace.settings, candidate)
            return frozenset(operator.name for operator in opened.application.operators)
        except (UnknownName, OSError):
            continue
    raise _unknown_code(region)


def configured_applications(settings: Settings) -> list[str]:
    """Return the applications of the settings; relative paths of files are joined to the project's root."""
    root = settings.project_root
    return [str(root / item) if item.endswith(".py") else item for item in settings.applications]


def own_applications(workplace: Workplace) -> list[str]:
    """Return the applications of the settings and those that ran here, each once; files by their paths."""
    registry = looks(workplace)
    there = recorded_applications(workplace, registry) if registry is not None else ()
    return list(dict.fromkeys([*configured_applications(workplace.settings), *there]))


def served_applications(settings: Settings, workplace: Workplace) -> list[str]:
    """Return the applications that Dagster's code location loads: those of the settings, else those that ran here.

    Not both: applications that somebody tried by hand are not added to those that the settings name. The result is
    empty if the settings name none and the registry is out of reach.
    """
    if settings.applications:
        return configured_applications(settings)
    try:
        return own_applications(workplace)
    except DrainmarkError as error:
        logger.warning("%s", error)
        return []


def recorded_applications(workplace: Workplace, registry: Looks) -> list[str]:
    """Return the applications that ran or were scanned, without files that are gone; files by their paths."""
    notes = (noted(workplace, region, registry) for region in recorded_regions(registry))
    ran = [note.reference for note in notes if note is not None and note.reference]
    return [reference for reference in ran if not reference.endswith(".py") or Path(reference).is_file()]


def recorded_regions(registry: Looks) -> list[str]:
    """Return the regions that ran or were scanned, sorted."""
    from drainmark.resources.registry.queries import is_cursor

    return [region for region in registry.regions() if not is_cursor(region)]


def named_application(workplace: Workplace, app: str | None) -> tuple[str, str | None]:
    """Return the reference and the start that `APP` or `APP/START` stands for; it is the same for every verb.

    A path of a file, or a dotted module, is a reference already. A name is that of an application of the settings, or
    of one that ran here, as `status` shows it; else it is a shipped one. None means the only one of the settings.

    Raises:
        UsageError: `app` is None, and the settings name no application, or several.
    """
    if app is None:
        return _only_application(workplace), None
    if (of_file := re.fullmatch(r"(.*\.py)(?:/([^/]+))?", app)) is not None:
        return of_file[1], of_file[2]
    name, _, start = app.partition("/")
    reference = next((found for found in own_applications(workplace) if name_of(found) == name), name)
    return reference, start or None


def find_region(workplace: Workplace, name: str) -> str:
    """Return a region's full name from `APP/START` or `APP`: the checkpoint tables are searched first, then the code.

    So a region need not have run: its application is found by `named_application`, as for every verb.

    Raises:
        UnknownName: the region is in neither, or the application has several regions.
        ApplicationBroken, AnalysisTimeout, DeclarationError: the region never ran, and its code cannot be opened.
    """
    below = find_regions(workplace, name)
    if len(below) > 1:  # some may have failed before their first state, or left the code
        registry, known = looks(workplace), workplace.known_regions()
        below = [region for region in below if not has_left(registry, region)] or below
        below = [region for region in below if region in known and workplace.history(region).states] or below
    if len(below) == 1:
        return below[0]
    if not below:
        raise UnknownName(f"application {name!r} has no region", remedy="put @dm.consistent on a source")
    raise UnknownName(f"application {name!r} has several regions", remedy=f"name one of {', '.join(below)}")


def find_regions(workplace: Workplace, name: str) -> list[str]:
    """Return the full names of all regions of `APP`, or of the one that `APP/START` stands for; see `find_region`."""
    known = workplace.known_regions()
    if found := [region for region in known if name in (region, region.partition("/")[0])]:
        return found
    reference, start = named_application(workplace, name)
    try:
        plan = open_in_time(workplace.settings, reference).plan
    except UnknownName:
        if reference.endswith(".py"):  # its file is not there
            raise
        from drainmark.jobs.graph.application import nearest

        names = [*known, *map(name_of, configured_applications(workplace.settings))]
        raise UnknownName(f"there is no region {name!r}", remedy=nearest(name, names)) from None
    return [plan.region(f"{plan.name}/{start}").name] if start else [region.name for region in plan.regions]


def _only_application(workplace: Workplace) -> str:
    found = configured_applications(workplace.settings)
    if len(found) == 1:
        return found[0]
    names = ", ".join(name_of(reference) for reference in found)
    msg = f"the project has several applications: {names}" if found else "the project names no application"
    remedy = f"name one, such as {name_of(found[0])}" if found else 'add applications = ["app.py"] to drainmark.toml'
    raise UsageError(msg, remedy=remedy)


def name_of(reference: str) -> str:
    """Return the name of the application of a reference."""
    return Path(reference).stem if reference.endswith(".py") else reference.rpartition(".")[2]


def require_code(workplace: Workplace, region: str) -> tuple[Opened, RegionPlan]:
    """Return the code of a region.

    Raises:
        UnknownName: it cannot be found, or does not compile.
    """
    found = load_region(workplace, region)
    if found is None:
        raise _unknown_code(region)
    return found


def _unknown_code(region: str) -> UnknownName:
    msg = f"the application of region {region!r} cannot be found"
    return UnknownName(msg, remedy='add it to drainmark.toml: applications = ["app.py"], or run `drainmark scan APP`')


def statement_text(application: Application, name: str, root: Path | None = None) -> str:
    """Return the text of a statement.

    Args:
        root: of the project; without one only the folders around the application's file are searched.

    Raises:
        UsageError: there is none of that name.
    """
    around = Path(application.origin).parents[:4] if application.origin else ()
    candidates = [
        folder / "sql" / application.name / f"{name}.sql" for folder in (*([root] if root is not None else []), *around)
    ]
    for path in candidates:
        if path.is_file():
            return path.read_text()
    where = candidates[0] if candidates else f"sql/{application.name}/{name}.sql"
    raise UsageError(f"there is no statement {name!r}", remedy=f"write it to {where}")
