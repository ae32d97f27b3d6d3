"""Applications opened within a time, whatever their files do; what failed in one that cannot be opened is counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import Halted
from drainmark.jobs.errors.loading import AnalysisTimeout
from drainmark.orchestration.runs.early_attempts import count_failure
from drainmark.orchestration.workplace.code_digest import code_digest
from drainmark.orchestration.workplace.declaration import Declared, known_from, noted
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings

IMPORT_SECONDS = 120.0
"""An import is given no longer, so that a code server is ready within the 180 s that Dagster waits for it."""


def open_in_time(
    settings: Settings,
    reference: str,
    *,
    params: Mapping[str, Any] | None = None,
    inputs: Sequence[str] = (),
    most_seconds: float = IMPORT_SECONDS,
) -> Opened:
    """Open an application as `open_application` does, in a thread that is left behind when it takes too long.

    Args:
        most_seconds: bound on `analysis_timeout_seconds`.

    Raises:
        AnalysisTimeout: the import did not end.
        ApplicationBroken, DeclarationError, UnknownName, UsageError: see `open_application`.
    """
    from drainmark.jobs.graph.authored import authors_line
    from drainmark.jobs.runtime.timeout import Bounded, Grace

    def late(seconds: float) -> AnalysisTimeout:
        location = authors_line((frame.f_code.co_filename, frame.f_lineno) for frame in opening.frames())
        where = f", in {location}" if location is not None else ""
        return AnalysisTimeout(
            f"application {reference!r} cannot be loaded: its import took longer than {seconds:g} s{where}",
            location=location,
            remedy="do nothing slow where the file is imported; or raise analysis_timeout_seconds",
        )

    opening = Bounded(
        lambda: open_application(reference, params=params, inputs=inputs),
        min(settings.analysis_timeout_seconds, most_seconds),
        Grace(lambda: False),
        late=late,
        name="import",
    )
    opened: Opened = opening.result()
    return opened


def unopened(
    workplace: Workplace, references: Iterable[str], *, most_seconds: float = IMPORT_SECONDS
) -> dict[str, Exception]:
    """Return, by reference, why applications cannot be opened; those that can be are left out."""
    found: dict[str, Exception] = {}
    for reference in references:
        try:
            open_in_time(workplace.settings, reference, most_seconds=most_seconds)
        except Exception as error:
            found[reference] = error
    return found


def origin_of(reference: str) -> str:
    """Return the path of the file that a reference means, "" where that is not known without an import."""
    from importlib.util import find_spec

    from drainmark.jobs.graph.application import shipped_applications

    if reference.endswith(".py") or "/" in reference:
        return str(Path(reference).absolute())
    try:
        spec = find_spec(f"drainmark.jobs.apps.{reference}" if reference in shipped_applications() else reference)
    except (ImportError, ValueError):
        return ""
    return spec.origin or "" if spec is not None else ""


def count_unopened(workplace: Workplace, reference: str, failure: Exception, *, run_id: str | None = None) -> Exception:
    """Count, for every region that is known of an application which cannot be opened, a run that failed so.

    Returns:
        `Halted` where one of them is halted, else the failure.
    """
    code = code_digest(origin_of(reference), workplace.settings.project_root)
    found = failure
    for region in known_from(workplace, reference):
        allowed = (noted(workplace, region) or Declared()).max_consecutive_reset_attempts
        error = count_failure(workplace, region, failure, allowed=allowed, code=code, run_id=run_id)
        found = error if isinstance(error, Halted) else found
    return found
