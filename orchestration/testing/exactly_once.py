"""`assert_exactly_once`: the golden run, then every failure at every step; the results must be equal."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.testing.applications import App
from drainmark.orchestration.testing.crash import matrix
from drainmark.orchestration.testing.crash.matrix import Action, Grouping
from drainmark.orchestration.testing.crash.trial import Proof
from drainmark.orchestration.testing.files import Files
from drainmark.orchestration.testing.running import Result, Tables, prepared

if TYPE_CHECKING:
    from drainmark.resources.spark.session import SparkEngine


def assert_exactly_once(
    app: App,
    files: Files | None,
    *,
    fail_points: Sequence[str] | Literal["all"] = "all",
    groupings: Sequence[Grouping] = (1, 2, "all"),
    actions: Sequence[Action] = ("raise", "lost_reply"),
    params: Mapping[str, Any] | None = None,
    tables: Tables | None = None,
    region: str | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: SparkEngine | None = None,
    prepare: Callable[[Result], None] | None = None,
) -> tuple[Proof, ...]:
    """Let an application fail at every step of the protocol; each recovery must end like a run without failures.

    After each failure no reader sees a row above the committed id. After the recovery, every sink equals that of the
    golden run, as readers see it and as of every file; so do the operators' states. Each file has exactly one state, no
    id was used twice, and no work is left unfinished. Steps that belong to no group (claim, rewind, ...) fail only with
    the last grouping. A failure takes about a second.

    Args:
        app, params, tables, region, settings, engine: as in `run_app`.
        files: as in `run_app`, records too; None if there are none. Each region needs at least two triggers.
        prepare: creates the input of other sources; it gets the application as `run_app` returns it, before any run.
        fail_points: names such as "publish.before_commit". Fail points that are named must be reached; "all" skips
            those that this application never reaches.
        groupings: files in each group; "all" is one group.
        actions: "kill" kills separate processes with SIGKILL. They share a Connect server.

    Returns:
        the proofs, one for each region.

    Raises:
        AssertionError: there is a difference; the message has the failure and the call that tries it alone. The home
            of the failure is kept.
        UsageError: fewer than two triggers; or "kill" is asked for, and another process cannot find the application.
        DrainmarkError: the application fails without an injected failure.
    """
    from drainmark.orchestration.testing.crash.killing import Killer
    from drainmark.orchestration.testing.crash.trial import Trial

    cells = list(matrix.cells(matrix.points(fail_points), actions, groupings))
    folder = Path(tempfile.mkdtemp(prefix="drainmark-exactly-once-"))
    scene = prepared(
        app, files, params=params, tables=tables, region=region, home=folder / "home", settings=settings, engine=engine
    )
    if files is not None and len(scene.put(files)) < 2:
        msg = "one file, or record, makes one state: nothing can go wrong between two"
        raise UsageError(msg, remedy="give two files at least, or two records")
    if prepare is not None:
        prepare(scene)
    proofs = []
    with ExitStack() as stack:
        killer = stack.enter_context(Killer(app, params or {}, folder)) if "kill" in actions else None
        for plan in scene.regions:
            trial = Trial(app=app, scene=scene, region=plan, folder=folder / plan.name, killer=killer)
            proofs.append(trial.run(cells, groupings, must_reach=fail_points != "all"))
    shutil.rmtree(folder)
    return tuple(proofs)


def assert_grouping_free(
    app: App, files: Files | None, *, groupings: Sequence[Grouping] = (2, "all"), **options: Any
) -> tuple[Proof, ...]:
    """Check that groups of any size give the rows of groups of one, in every table, after every file. No step fails.

    Args:
        options: as in `assert_exactly_once`.

    Raises:
        AssertionError, UsageError, DrainmarkError: see `assert_exactly_once`.
    """
    return assert_exactly_once(app, files, fail_points=(), groupings=groupings, **options)
