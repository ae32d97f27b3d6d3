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
    """Let an application fail at every step of the protocol; each recovery must end as a run without failures.

    After each failure no reader sees a row above the committed id. After the recovery every sink equals the golden
    run's, as readers see it and as of every file; the operators' states do, too; each file has exactly one state; no
    id was used twice; nothing is left undone. Steps that belong to no group (claim, rewind, ...) fail only with the
    last grouping. A failure takes about a second.

    Args:
        app, params, tables, region, settings, engine: as `run_app` takes them.
        files: as `run_app` takes them, records too; None where neither is given. Two triggers at least for each region.
        prepare: puts in place what other sources read, given the application as `run_app` returns it, not run yet.
        fail_points: names such as "publish.before_commit"; "all" passes over those that this application never
            reaches, those named must be reached.
        groupings: files a group; "all" is one group.
        actions: "kill" has failures strike a process of their own by SIGKILL; those processes share a Connect server
            where the extra `connect` is installed, else each starts a JVM, which takes ten seconds more a failure.

    Returns:
        the proofs, one for each region.

    Raises:
        AssertionError: names the difference, the failure, and how to try this failure alone; its home is kept.
        UsageError: no files, or an application that another process cannot find is to be killed.
        DrainmarkError: the application fails by itself.
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
    """Check that groups of any size give the rows of groups of one, in every table, after every file; without failures.

    Args:
        options: as `assert_exactly_once` takes them.

    Raises:
        AssertionError, UsageError, DrainmarkError: see `assert_exactly_once`.
    """
    return assert_exactly_once(app, files, fail_points=(), groupings=groupings, **options)
