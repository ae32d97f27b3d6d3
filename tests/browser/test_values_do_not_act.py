"""A value that would launch a job if Dagster's pages rendered it: they show it, and the browser asks for nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import quote

import dagster as dg
import pytest
from browser.chrome import Chrome, opened_chrome
from browser.site import JOB, REGION, Site, running_site

from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.orchestration.dagster_assets.assets import checkpoint_key_of
from drainmark.orchestration.dagster_assets.metadata import groups_table
from drainmark.orchestration.verbs import interventions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHECKPOINTS = "/assets/log_watch/checkpoints/lines"
ORDER = (
    'mutation{launchRun(executionParams:{selector:{repositoryLocationName:"drainmark",repositoryName:"__repository__",'
    f'jobName:"{JOB}__plan"}},'
    'runConfigData:"ops: {order: {config: {verb: {halt: {reason: a-value}}}}}"}){__typename}}'
)
VALUE = f"![x](/graphql?query={quote(ORDER, safe='')})"
CONTROL = "/favicon.svg?control"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with running_site(tmp_path_factory.mktemp("site") / "watch", port) as running:
        yield running


@pytest.fixture(scope="module")
def chrome(site: Site) -> Iterator[Chrome]:
    with opened_chrome(site.url) as opened:
        yield opened


def group(uri: str) -> GroupReport:
    return GroupReport(
        region=REGION, epoch=1, first_id=1, last_id=1, first_uri=uri, last_uri=uri, rows_in=1,
        rows_quarantined=0, rows_out={}, versions={}, bytes_in=1, process_seconds=0.0, drain_seconds=0.0,
        checkpoint_seconds=0.0, publish_seconds=0.0,
    )  # fmt: skip


def asked(chrome: Chrome) -> list[str]:
    """Return the addresses that the page has loaded."""
    return list(chrome.ask("performance.getEntriesByType('resource').map(each => each.name)"))


def test_an_image_in_a_value_of_a_halted_region_is_not_loaded(chrome: Chrome, site: Site) -> None:
    key = checkpoint_key_of(REGION)
    control = dg.AssetObservation(key, description=f"![x]({CONTROL})")
    site.instance.report_runless_asset_event(control)
    chrome.open(f"{CHECKPOINTS}?view=events", "Observed")
    site.wait(lambda: any(CONTROL in each for each in asked(chrome)), "the image of a description that is not escaped")

    interventions.halt(site.workplace, REGION, f"no number: {VALUE}")
    table = dg.MetadataValue.md(groups_table([group(f"/in/![x](/{VALUE.partition('/')[2]}")]))
    site.instance.report_runless_asset_event(dg.AssetObservation(key, metadata={"groups": table}))
    for view, told in (("checks", "not_halted"), ("events", "first trigger"), ("overview", "drainmark/starts")):
        chrome.open(f"{CHECKPOINTS}?view={view}", told)
        if view == "checks":
            chrome.click("not_halted")
        chrome.wait_for(VALUE)
        assert [each for each in asked(chrome) if "mutation" in each] == []
    assert site.instance.get_runs() == []
