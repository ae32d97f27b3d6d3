"""The scene of the Dagster tests: a small application, a real instance, and the definitions over one home."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from harness import starts_of_spark
from waiting import SOON

from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.workplace.hand_off import ASKED
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

ROOT = Path(__file__).parents[2]
REGION = "little/rows"
JOB = "little__rows"
NODE = "little__rows__run"

APPLICATION = '''
"""Sums values; one that is no number is poison; stops in a group while a file `hold` lies beside it.

It runs with Spark, and by hand (`hand_runs`).
"""
from __future__ import annotations

import threading
import time
from pathlib import Path

import drainmark as dm
from drainmark import F

HERE = Path(__file__).parent


class Params(dm.Params):
    factor: int = 1


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=1{more})
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, v string", settle=0.0))
def rows(scanned):
    return scanned


@dm.functor
def numbers(rows, params: Params) -> "k string, v bigint":
    while (HERE / "hold").exists() and threading.current_thread().name == "bounded":  # in a group, after the claim
        (HERE / "held").touch()
        time.sleep(0.05)
    if isinstance(rows, list):
        return [{{"k": row["k"], "v": int(row["v"]) * params.factor}} for row in rows]
    return dm.select(rows, "k", (F.col("v").cast("bigint") * params.factor).alias("v"))


totals = dm.aggregate(numbers, keys=["k"], values={{"total": dm.sum("v")}}, name="totals")
dm.sink(numbers, dm.DeltaAppend("little_numbers"))
dm.sink(totals, dm.DeltaUpsert("little_totals", keys=["k"]))
'''


def write_application(folder: Path, more: str = "") -> Path:
    """Write the application; `more` is appended to the arguments of `@consistent`."""
    path = folder / "little.py"
    path.write_text(APPLICATION.format(more=more))
    return path


def drop(folder: Path, name: str, text: str) -> Path:
    """Put a file into the inbox in one step: it is written under a hidden name, and renamed."""
    inbox = folder / "inbox"
    inbox.mkdir(exist_ok=True)
    hidden = inbox / f".{name}"
    hidden.write_text(text)
    return hidden.rename(inbox / name)


@contextmanager
def instance_at(folder: Path) -> Iterator[dg.DagsterInstance]:
    """Open a real instance that is configured as the project's own instance."""
    shutil.copytree(_empty_instance(), folder, dirs_exist_ok=True)
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        yield instance


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Yield the instance of a test's home."""
    with instance_at(tmp_path / "home" / "dagster") as opened:
        yield opened


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    """Yield a home without any Spark session: ticks, verbs and alerts must not need one."""
    (tmp_path / "inbox").mkdir()
    workplace = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    starts = starts_of_spark(workplace)
    yield workplace
    assert starts == []
    workplace.registry.close()


@functools.cache
def _empty_instance() -> Path:
    """Return the folder of an instance without any events: Dagster needs a second to create its databases."""
    folder = Path(tempfile.mkdtemp(prefix="drainmark-dagster-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copy(ROOT / "dagster.yaml", folder / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(folder)):
        return folder


def definitions(workplace: Workplace, path: Path) -> dg.RepositoryDefinition:
    """Return the code location with one application."""
    settings = workplace.settings.model_copy(update={"applications": (str(path),)})
    workplace.settings = settings
    return build_definitions(settings, workplace).get_repository_def()


def execute(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, config: dict[str, Any] | None = None, **more: Any
) -> dg.ExecuteInProcessResult:
    """Run the region's job in this process."""
    run_config = {"ops": {NODE: {"config": config or {}}}}
    return repository.get_job(JOB).execute_in_process(
        instance=instance, run_config=run_config, raise_on_error=False, **more
    )


def events(instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType) -> list[dg.DagsterEvent]:
    """Return the events of a kind that a run left."""
    return [record.dagster_event for record in instance.all_logs(run_id, of_type=kind) if record.dagster_event]


def sent_away(place: Workplace, region: str, run: threading.Thread) -> None:
    """Ask a run that stays for more to go, and wait for its end: else it works on beside the tests that follow."""
    place.registry.save_cursor(region, ASKED, str(uuid.uuid4()))
    run.join(SOON)
