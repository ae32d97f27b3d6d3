"""The placeholder in a code location for an application that cannot be loaded, so that the others still load.

A sensor of the application's name fails with the file, the line and the error, until the file can be loaded again. Each
region that is known from earlier runs has a job and a sensor with the usual names. Its runs fail with the same error
and count as attempts, so the region is HALTED after its budget, as after failures of the analysis.

Some causes are temporary: a bucket that does not answer, or a first file that is not there yet. Then the sensor tries
again, and it asks Dagster's web server to reload the code location, if `dagster_url` is set.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.
import logging
import threading
from collections.abc import Sequence
from urllib.parse import urlsplit

import dagster as dg

from drainmark.jobs.errors import DrainmarkError, Halted, Retry
from drainmark.jobs.errors.environment import SchemaUnknown
from drainmark.jobs.printable import markdown, printable
from drainmark.jobs.protocol.failure_policy import is_lifted
from drainmark.jobs.runtime.messages import classified, halt_text
from drainmark.orchestration.dagster_assets.metadata import MAX_RETRIES_TAG
from drainmark.orchestration.dagster_jobs.desk import desk_jobs
from drainmark.orchestration.dagster_jobs.run_endings import failure_of, note
from drainmark.orchestration.dagster_jobs.run_monitor import counted_tag, tag_process, tags_of
from drainmark.orchestration.dagster_jobs.sensors import one_run_sensor
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.runs.failures_before_claim import count_failure, origin_of
from drainmark.orchestration.runs.halt_hook import make_up
from drainmark.orchestration.workplace.application_identity import code_digest
from drainmark.orchestration.workplace.declaration import Declared, name_of, noted
from drainmark.orchestration.workplace.workplace import Workplace, open_in_time

SUFFIX = "__broken"

_RELOAD_SECONDS = 2.0
"""Seconds before the request to reload: the tick must answer first, because the reload ends its code server."""

logger = logging.getLogger(__name__)


def broken_definitions(
    workplace: Workplace, reference: str, error: Exception, *, regions: Sequence[str] = ()
) -> dg.Definitions:
    """Return the definitions that replace those of an application.

    Args:
        error: of its import.
        regions: the regions of the application that are known from earlier runs.
    """
    code = code_digest(origin_of(reference), workplace.settings.project_root)
    jobs, sensors = [], [_sensor(workplace, reference, classified(error), code)]
    for region in regions:
        job = _job(workplace, reference, region, code)
        jobs += [job, *desk_jobs(workplace, region, None)]
        sensors.append(_region_sensor(workplace, reference, region, job))
    return dg.Definitions(jobs=jobs, sensors=sensors)


def _sensor(workplace: Workplace, reference: str, error: DrainmarkError, code: str) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{dagster_name(name_of(reference))}{SUFFIX}",
        minimum_interval_seconds=max(30, workplace.settings.sensor_interval_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=markdown(f"{reference} cannot be loaded: {error.message}"[:1000]),
    )
    def broken_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        is_same = code and code_digest(origin_of(reference), workplace.settings.project_root) == code
        if is_same and not _may_pass(error):
            raise error
        try:
            open_in_time(workplace.settings, reference)
        except DrainmarkError as found:
            if not is_same or not _may_pass(found):
                raise
            return dg.SkipReason(printable(f"{found.message}; {found.remedy}"))
        if is_same and (url := workplace.settings.dagster_url):
            location = context.code_location_origin
            threading.Timer(_RELOAD_SECONDS, _reload, (url, location.location_name if location else "")).start()
            return dg.SkipReason(f"{reference} can be loaded now: {url} is asked to reload the code location")
        return dg.SkipReason(f"{reference} can be loaded now: reload the code location")

    return broken_sensor


def _may_pass(error: DrainmarkError) -> bool:
    """Say whether the same code might be loaded later."""
    return isinstance(error, SchemaUnknown) or error.retry is Retry.WAIT


def _reload(url: str, location: str) -> None:
    from dagster_graphql import DagsterGraphQLClient

    where = urlsplit(url)
    try:
        client = DagsterGraphQLClient(
            where.hostname or "", port_number=where.port, use_https=where.scheme == "https", path_prefix=where.path
        )
        client.reload_repository_location(location)
    except Exception as error:  # the next tick asks again
        logger.warning("%s does not reload the code location %s: %s", url, location, error)


def _job(workplace: Workplace, reference: str, region: str, code: str) -> dg.JobDefinition:
    """Return a job that loads the code, as the first step of the region's own job does, and fails with its error."""
    name, allowed = dagster_name(region), _allowed(workplace, region)

    @dg.op(
        name=f"{name}__run",
        description="load the application, which failed when this code location was loaded",
        config_schema=dg.Permissive(),  # type: ignore[no-untyped-call]
    )
    def load(context: dg.OpExecutionContext) -> None:
        tags = {**tags_of(region, allowed), **tag_process(context.run_id)}
        context.instance.add_run_tags(context.run_id, tags)
        try:
            open_in_time(workplace.settings, reference)
        except Exception as error:
            found = count_failure(workplace, region, error, allowed=allowed, code=code, run_id=context.run_id)
            context.instance.add_run_tags(context.run_id, counted_tag(context.run_id))
            note(context, str(found))
            if isinstance(found, Halted):
                context.instance.add_run_tags(context.run_id, {MAX_RETRIES_TAG: "0"})
            raise failure_of(found, region) from error
        raise dg.Failure(f"{reference} can be loaded now: reload the code location", allow_retries=False)

    graph = dg.GraphDefinition(name=name, node_defs=[load])
    return graph.to_job(name=name, executor_def=dg.in_process_executor, tags=tags_of(region, allowed))


def _region_sensor(workplace: Workplace, reference: str, region: str, job: dg.JobDefinition) -> dg.SensorDefinition:
    def wanted() -> dg.RunRequest | str:
        history = workplace.history(region)
        code = code_digest(origin_of(reference), workplace.settings.project_root)
        if history.halt is not None and not is_lifted(history, code):
            make_up(workplace, region, history)
            return f"HALTED: {halt_text(region, history)}"
        return dg.RunRequest(tags=tags_of(region, _allowed(workplace, region)))

    what = f"Starts runs of {region}, which fail, until its application can be loaded or it is HALTED."
    return one_run_sensor(workplace, job, what, wanted=wanted)


def _allowed(workplace: Workplace, region: str) -> int:
    return (noted(workplace, region) or Declared()).max_consecutive_reset_attempts
