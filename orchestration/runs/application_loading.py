"""Applications that cannot be opened; each failure is counted as an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drainmark.jobs.errors import Halted
from drainmark.orchestration.runs.failures_before_claim import count_failure
from drainmark.orchestration.workplace.code_digest import code_digest
from drainmark.orchestration.workplace.declaration import Declared, known_from, noted
from drainmark.orchestration.workplace.workplace import IMPORT_SECONDS, Workplace, opened_in_time


def unopened(
    workplace: Workplace, references: Sequence[str], *, most_seconds: float = IMPORT_SECONDS
) -> dict[str, Exception]:
    """Open all applications within one time limit; return the errors of those that cannot be opened, by reference."""
    opened = opened_in_time(workplace.settings, references, most_seconds=most_seconds)
    return {reference: found for reference, found in opened if isinstance(found, Exception)}


def origin_of(reference: str) -> str:
    """Return the path of the file that a reference means, "" if only an import could tell."""
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
    """Count a failed attempt for every known region of an application that cannot be opened.

    Returns:
        `Halted` if one of the regions is halted, else the failure.
    """
    code = code_digest(origin_of(reference), workplace.settings.project_root)
    found = failure
    for region in known_from(workplace, reference):
        allowed = (noted(workplace, region) or Declared()).max_consecutive_reset_attempts
        error = count_failure(workplace, region, failure, allowed=allowed, code=code, run_id=run_id)
        found = error if isinstance(error, Halted) else found
    return found
