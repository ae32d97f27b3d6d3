"""The Dagster instance that works on a home: where it is, and what Drainmark counts on in its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.resources.storage.folder import write_whole

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from drainmark.resources.settings import Settings

INSTANCE_FILE = "dagster.yaml"
_FREE_SLOTS = "free_slots_after_run_end_seconds"


def instance_home(settings: Settings) -> Path:
    """Return the folder of the Dagster instance that used a home last; by default that of `drainmark dev`.

    Raises:
        OSError: nobody can say.
    """
    try:
        noted = Path(_note(settings).read_text(encoding="utf-8").strip())
    except (FileNotFoundError, UnicodeDecodeError):
        return settings.dagster_home
    return noted if noted.is_absolute() and noted.is_dir() else settings.dagster_home


def _note(settings: Settings) -> Path:
    return settings.home / "dagster_home"


def has_instance(settings: Settings) -> bool:
    """Say whether there is a Dagster instance to report to; this does not import Dagster."""
    folder = instance_home(settings)
    return (folder / INSTANCE_FILE).is_file() or (folder != settings.dagster_home and folder.is_dir())


@contextmanager
def instance_at(dagster_home: Path) -> Iterator[DagsterInstance]:
    """Open the Dagster instance in a folder."""
    import dagster as dg

    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        yield instance


def remember_instance(settings: Settings, instance: DagsterInstance) -> None:
    """Leave the folder of an instance in the home, for the events of the command line and of halts.

    A location in somebody's project works for an instance that is not in the home. It serves the display alone, so
    nothing fails if the file cannot be written.
    """
    folder = Path(instance.root_directory).absolute()
    with suppress(OSError):
        if instance.is_persistent and folder.is_dir() and folder != instance_home(settings):
            settings.make_home()
            write_whole(_note(settings), f"{folder}\n")


def missing_lines(instance: DagsterInstance) -> list[tuple[str, str]]:
    """Return what follows where a configuration lacks what Drainmark counts on, each with the line that is missing."""
    import dagster as dg

    if type(instance) is not dg.DagsterInstance:  # Dagster+ is configured elsewhere
        return []
    lacks, monitoring = [], instance.run_monitoring_settings
    if not instance.run_retries_enabled:
        follows = "Dagster retries no run that failed: only the sensor or schedule of its region starts another one"
        lacks.append((follows, "run_retries: {enabled: true}"))
    line = f"run_monitoring: {{enabled: true, {_FREE_SLOTS}: 30}}"
    if not instance.run_monitoring_enabled:
        follows = "a run that is killed while it starts stays in progress, and its region waits for it"
        if not isinstance(instance.run_launcher, dg.DefaultRunLauncher):
            follows = "nobody notices a run whose container dies before or after the op of a region"
        lacks.append((follows, line))
    elif not monitoring.get(_FREE_SLOTS) and _has_pools(instance):
        lacks.append(("a run that was killed keeps its place in a pool, for which others wait", line))
    return lacks


def _has_pools(instance: DagsterInstance) -> bool:
    storage = instance.event_log_storage
    return storage.supports_global_concurrency_limits and bool(storage.get_concurrency_keys())
