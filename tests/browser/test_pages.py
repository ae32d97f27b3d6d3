"""The pages of Dagster about a region, read with a real browser.

`make screenshots` sets `DRAINMARK_SCREENSHOTS`, and so makes the pictures of docs/screenshots.md.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from browser.chrome import PICTURES, Chrome, opened_chrome
from browser.site import JOB, REGION, Site, running_site

from drainmark.jobs.testing.syslog import HOSTS
from drainmark.orchestration.dagster_jobs.desk import PLAN_ONLY
from drainmark.orchestration.inspection.desk_links import launchpad
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

HOURS = (1, 2, 6)
"""Logs up to these hours arrive one after another, for as many runs; the last run has several groups."""

FILES = HOURS[-1] * len(HOSTS)
GROUP = f"/locations/drainmark/asset-groups/{JOB}/lineage"
SENSOR = f"/locations/drainmark/sensors/{JOB}__sensor"
CHECKPOINTS = "/assets/log_watch/checkpoints/lines"


@contextmanager
def project_folder() -> Iterator[Path]:
    """Yield a new folder for the project; pictures show its path, so for them it has a short neutral name."""
    if not os.environ.get(PICTURES):
        with TemporaryDirectory(prefix="logs-") as folder:
            yield Path(folder)
        return
    shop = Path("/tmp/shop")
    shop.mkdir()
    try:
        yield shop
    finally:
        shutil.rmtree(shop)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with project_folder() as folder, running_site(folder / "watch", port) as running:
        for first, last in zip((0, *HOURS), HOURS, strict=False):
            running.drop_logs(first, last)
            running.wait_committed(last * len(HOSTS))
        yield running


@pytest.fixture(scope="module")
def chrome(site: Site) -> Iterator[Chrome]:
    with opened_chrome(site.url) as opened:
        opened.open("/runs", "Hide navigation")
        opened.click("Hide navigation")  # the pages themselves get more room
        yield opened


def test_the_graph_tells_source_state_sinks_and_checkpoints_apart(chrome: Chrome) -> None:
    chrome.appear(height=1600)  # Dagster draws only visible assets
    chrome.open(GROUP, "log_watch_hosts", "log_watch_alerts", "2 / 2 Passed", "Materialized")
    chrome.wait_for("Source", "checkpoint", "state", "sink", "quarantine")
    assert "word_count" not in chrome.text(), "the examples keep out of the way once a project names its application"
    chrome.picture("asset-graph")
    chrome.appear()


def test_a_sink_has_a_description_its_rows_and_plots(chrome: Chrome) -> None:
    chrome.open(
        "/assets/log_watch/log_watch_hosts?view=overview",
        *("One row for each value of remote_host", "drainmark show log_watch_hosts", "Row count"),
        *("drainmark/sequence_id", "drainmark/rows", "drainmark/delta_version", "lake/log_watch_hosts"),
    )
    chrome.click("Plots")
    chrome.wait_for("dagster/row_count", "drainmark/bytes_in")
    chrome.wait_for_plots(8)
    chrome.picture("sink-plots")


def test_the_checkpoint_table_plots_the_steps_of_the_protocol(chrome: Chrome) -> None:
    chrome.open(f"{CHECKPOINTS}?view=overview", "one row for each consistent state", f"drainmark history {REGION}")
    chrome.click("Plots")
    chrome.wait_for("drainmark/checkpoint_seconds", "drainmark/drain_seconds")
    chrome.wait_for_plots(8)
    chrome.picture("checkpoint-plots")


def test_the_groups_of_a_run_are_a_table(chrome: Chrome) -> None:
    last = f"{FILES - 3}..{FILES}"
    chrome.open(f"{CHECKPOINTS}?view=events", "groups: 4, triggers: 16", last, f"{HOSTS[-1]}/auth-")
    chrome.picture("groups")


def test_the_checks_can_be_read_and_run(chrome: Chrome, site: Site) -> None:
    names = ("not_halted", "rewind_horizon")
    chrome.open(f"{CHECKPOINTS}?view=checks", *names, "Execute all", "Passed")
    chrome.click("not_halted")
    chrome.wait_for("The region does not wait for", "not halted")
    chrome.picture("checks")
    before = len(site.instance.get_runs())
    chrome.click("Execute")
    site.wait(lambda: len(site.instance.get_runs()) > before, "the run of one check")


def test_the_runs_say_which_states_they_made(chrome: Chrome) -> None:
    chrome.open("/runs", f"drainmark/region: {REGION}", f"drainmark/sequence_ids: 1..{HOURS[0] * len(HOSTS)}")
    assert "drainmark_process" not in chrome.text(), "what only machines read is not shown"
    chrome.picture("runs")


def test_a_run_logs_one_line_a_step(chrome: Chrome, site: Site) -> None:
    chrome.open(f"/runs/{site.runs()[0].run_id}", "__run", "RUN_SUCCESS")
    chrome.fill("Filter", "(after")
    chrome.wait_for("claim: epoch 3", "state: PROCESSING", f"last id {FILES}")
    chrome.picture("run")


def test_a_verb_is_launched_with_its_config_and_shows_its_plan(chrome: Chrome) -> None:
    chrome.open(launchpad(REGION, "reset", {"by": 8}), "No errors", "No missing config", "Launch Run")
    chrome.press("Launch Run")
    plan = f"{REGION}: rewind from {FILES} to {FILES - 8}"
    chrome.wait_for(plan, "8 files become pending", "nothing was done; to carry this plan out", "RUN_SUCCESS")
    chrome.open("/runs", f"drainmark/outcome: {PLAN_ONLY}")


def test_the_sensor_says_why_it_does_not_start_a_run(chrome: Chrome, site: Site) -> None:
    site.wait_skip_reason("nothing is pending")
    chrome.open(SENSOR, f"Scans the input of region {REGION}", "Running", "0 runs requested")
    chrome.picture("sensor")
    interventions.halt(site.workplace, REGION, "mail1 sends nonsense")
    site.wait_skip_reason("HALTED")
    chrome.open(SENSOR, "0 runs requested")
    chrome.open_tick()
    chrome.wait_for("Skip reason", "HALTED: mail1 sends nonsense", f"drainmark resume {REGION}")
    chrome.picture("skip-reason")


def test_the_asset_page_leads_to_the_page_of_the_region(chrome: Chrome, site: Site) -> None:
    chrome.open(f"{CHECKPOINTS}?view=overview", "drainmark/page")
    address = chrome.ask(f"[...document.links].map(each => each.href).find(each => each.endsWith('{REGION}'))")
    chrome.driver.get(address)
    chrome.wait_for(REGION, "HALTED", "mail1 sends nonsense", f"drainmark resume {REGION}")

    target = RewindTarget(to=FILES - 8)
    interventions.reset(site.workplace, plan_reset(site.workplace, REGION, target))
    interventions.resume(site.workplace, REGION, "mail1 is mended")
    site.wait_committed(FILES)
    chrome.wait_for("STARTED", f"rewound to {FILES - 8}")  # the page reloads by itself
    chrome.wait_for("log_watch_hosts_sink", "rows written", f"The newest {len(site.groups())} groups")
    for scheme, name in (("light", "region-page"), ("dark", "region-page-dark")):
        chrome.appear(width=1280, height=1372, scheme=scheme)  # down to the graph: the README shows it
        chrome.picture(name)
