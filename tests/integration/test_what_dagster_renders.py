"""Files, values, columns, settings and reasons that are Markdown or HTML: on Dagster's pages they are text."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest
from dagster_pages import acting, launched, rendered, shown
from harness import verbs
from integration.dagster_scene import JOB, NODE, REGION, drop, instance

from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.workplace.workplace import Workplace

pytestmark = [pytest.mark.spark]

__all__ = ["instance"]

FOLDER = "in ![f](/f) <b>www.f.de</b> a|b``c ``` d"
COLUMN = "k ![c](/c)|<i>"
EXPECTED = "v <> 'www.e.de' and v <> '![e](/e)'"
GOOD = "![g](x) <img src=g> |`www.g.de`~~~\n- [g]: g\n```\n.csv"
POISON = "![p](?query=mutation) p@q.de.csv"
VALUE = "![v](/graphql?query=mutation{launchRun})<img src=/v>"
REASON = "![r](/r)\n```\n<img src=r> www.r.de"
BROKEN = "![b](/b)\n<img src=b>"

APPLICATION = f"""
import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
@dm.source(dm.DirectoryScan(path={FOLDER!r}, format="csv", schema="`{COLUMN}` string, v string", settle=0.0))
def rows(scanned):
    return scanned


expected = dm.expect(rows, {EXPECTED!r}, name="expected", on_fail="warn")


@dm.functor
def numbers(expected):
    return dm.select(expected, "`{COLUMN}`", F.col("v").cast("bigint").alias("v"))


dm.sink(numbers, dm.DeltaUpsert("totals", keys=[{COLUMN!r}]), name="little_totals")
"""


@pytest.fixture
def repository(workplace: Workplace, tmp_path: Path) -> dg.RepositoryDefinition:
    (tmp_path / "little.py").write_text(APPLICATION)
    (tmp_path / "broken.py").write_text(f"raise ValueError({BROKEN!r})")
    (tmp_path / "inbox").symlink_to(tmp_path / FOLDER)
    (tmp_path / FOLDER).mkdir(parents=True)
    names = tuple(str(tmp_path / name) for name in ("little.py", "broken.py"))
    workplace.settings = workplace.settings.model_copy(update={"applications": names})
    ours = build_definitions(workplace.settings, workplace)
    return dg.Definitions.merge(dg.Definitions(executor=dg.in_process_executor), ours).get_repository_def()


def started(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, job: str, op: str, **config: object
) -> dg.ExecuteInProcessResult:
    return repository.get_job(job).execute_in_process(
        instance=instance, run_config={"ops": {op: {"config": config}}}, raise_on_error=False
    )


def test_nothing_that_is_said_acts_and_all_of_it_can_be_read(
    workplace: Workplace,
    repository: dg.RepositoryDefinition,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drop(tmp_path, GOOD, "a,1\nbad\n")
    assert started(repository, instance, JOB, NODE).success
    drop(tmp_path, POISON, f"a,{VALUE}\n")
    assert not started(repository, instance, JOB, NODE).success
    assert workplace.history(REGION).halt is not None
    skip = {"skip": {"files": [POISON], "reason": REASON}}
    assert started(repository, instance, f"{JOB}__plan", "order", verb=skip).success
    verb = verbs(workplace.home, capsys)
    verb("skip", REGION, "--file", POISON, "--reason", REASON)
    verb("resume", REGION, "--reason", REASON)
    verb("reset", REGION, "--to", "0", "--yes")
    verb("halt", REGION, "--reason", REASON)

    found = rendered(repository, workplace.settings.dagster_home)
    (orders,) = {text for text in found if f", or [{JOB}__plan: skip](" in text}
    _, (job, config) = map(launched, re.findall(r"\((/guess/[^)]*)\)", orders))
    (options,) = config["ops"]["order"]["config"]["verb"].values()
    assert (job, *(Path(file).name for file in options["files"])) == (f"{JOB}__plan", POISON)
    assert dg.validate_run_config(repository.get_job(job), config)
    assert {text: what for text in found if (what := acting(text))} == {}
    read = "\n".join(map(shown, found))
    written = [text.replace("\n", "\\n") for text in (FOLDER, COLUMN, EXPECTED, POISON, VALUE, GOOD)]
    assert [text for text in (*written, REASON, BROKEN) if text not in read] == []
