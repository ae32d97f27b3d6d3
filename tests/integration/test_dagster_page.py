"""Dagster's page behind the guard, as a real process: what its own page sends is answered, what others send is not."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg
import pytest
from dagster_graphql import DagsterGraphQLClient
from integration.dagster_scene import ROOT
from ports import free_port
from waiting import SOON
from websockets.sync.client import connect

from drainmark.orchestration.dagster_jobs import dagster_internals
from drainmark.orchestration.dagster_page.web_server import names_for
from drainmark.resources.spark.resident.server import HOST

LOCATION = """
import dagster as dg

@dg.op(config_schema={"plan": dg.Field(str, default_value="")})
def halt(): ...

@dg.job
def rows__halt():
    halt()

defs = dg.Definitions(jobs=[rows__halt])
"""
SELECTOR = '{repositoryLocationName: "desk.py", repositoryName: "__repository__", jobName: "rows__halt"}'
LAUNCH = f'mutation {{launchRun(executionParams: {{selector: {SELECTOR}, runConfigData: "{{}}"}}) {{__typename}}}}'
IMAGE = {"Accept": "image/avif,image/webp,*/*;q=0.8"}
OTHER_SITE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "graphql-ws",
}
JSON = {"Content-Type": "application/json"}


class Page:
    """A served page, and the instance behind it."""

    def __init__(self, port: int, instance: dg.DagsterInstance) -> None:
        self.port, self.instance, self.here = port, instance, f"{HOST}:{port}"

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] = {}, body: str | None = None
    ) -> tuple[int, HTTPResponse, bytes]:
        """Send one request; return the status, the response with its headers, and the body."""
        connection = HTTPConnection(HOST, self.port, timeout=SOON)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response, b"" if response.status == 101 else response.read()
        finally:
            connection.close()

    def graphql(self, query: str, headers: Mapping[str, str] = {}) -> tuple[int, Any]:
        status, _, body = self.ask("POST", "/graphql", {**JSON, **headers}, json.dumps({"query": query}))
        return status, json.loads(body) if status == 200 else body.decode()

    def runs(self) -> int:
        return self.instance.get_runs_count()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "desk.py").write_text(LOCATION)
    (folder / "drainmark.toml").write_text("dagster_url = 'https://dagster.example.com'\n")
    (folder / "dagster").mkdir()
    port = free_port()
    command = [sys.executable, "-m", "drainmark.orchestration.dagster_page.web_server", "-f", "desk.py"]
    environment = {**os.environ, "DAGSTER_HOME": str(folder / "dagster"), "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("wb") as log, dg.DagsterInstance.from_config(str(folder / "dagster")) as instance:
        process = subprocess.Popen(
            [*command, "-h", HOST, "-p", str(port)], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            served = Page(port, instance)
            wait_until_served(served, process, folder / "log")
            yield served
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def wait_until_served(page: Page, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            page.ask("GET", "/server_info")
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_what_the_page_itself_and_programs_of_the_operator_send_is_answered(page: Page) -> None:
    own = {"Origin": f"http://{page.here}", "Sec-Fetch-Site": "same-origin"}
    before = page.runs()
    for headers in (own, {}, {"Host": f"localhost:{page.port}"}, {"Host": "192.168.1.7:3000"}, {"Host": "[::1]:3000"}):
        assert page.graphql(LAUNCH, headers) == (200, {"data": {"launchRun": {"__typename": "LaunchRunSuccess"}}})
    assert page.runs() == before + 5
    run = page.instance.get_runs(limit=1)[0].run_id
    assert gzip.decompress(page.ask("GET", f"/download_debug/{run}", own)[2])
    assert page.ask("GET", f"/logs/{run}/compute_logs/halt/out", own)[2] == b"No log files available for download"
    assert page.ask("POST", "/report_asset_materialization/sales", {**own, **JSON}, "{}")[0] == 200
    for path in ("/", "/favicon.svg", "/runs", "/graphql", "/server_info"):
        status, response, _ = page.ask("GET", path, {**own, "Accept": "text/html,*/*"})
        assert status == 200, path
        assert response.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert "frame-ancestors 'self'" in response.headers.get_all("Content-Security-Policy", [])
    assert page.ask("GET", "/runs", {**LINK, "Accept": "text/html"})[0] == 200, "a link in an alert"
    reloaded = DagsterGraphQLClient(HOST, port_number=page.port).reload_repository_location("desk.py")
    assert reloaded.status.value == "SUCCESS", "as Drainmark does when an application can be loaded again"


def test_subscriptions_come_over_a_websocket_of_the_page_itself(page: Page) -> None:
    assert page.graphql(LAUNCH)[0] == 200
    run = page.instance.get_runs(limit=1)[0].run_id
    query = f'subscription {{pipelineRunLogs(runId: "{run}") {{__typename}}}}'
    address = f"ws://{page.here}/graphql"
    with connect(address, origin=f"http://{page.here}", subprotocols=["graphql-ws"]) as socket:  # type: ignore[call-overload]
        socket.send(json.dumps({"type": "connection_init"}))
        assert json.loads(socket.recv(60)) == {"type": "connection_ack"}
        socket.send(json.dumps({"type": "start", "id": "1", "payload": {"query": query}}))
        found = json.loads(socket.recv(60))
    assert found["payload"]["data"]["pipelineRunLogs"]["__typename"] == "PipelineRunLogsSubscriptionSuccess"


def test_the_address_of_an_image_on_any_web_page_launches_nothing(page: Page) -> None:
    before = page.runs()
    for path in ("/graphql", "/graphql%0A", "//graphql"):
        address = f"{path}?query={quote(LAUNCH)}"
        assert page.ask("GET", address, {**IMAGE, **OTHER_SITE})[0] == 403
        status, response, _ = page.ask("GET", address, IMAGE)  # browsers send no Sec-Fetch-Site to a plain http address
        assert (status, response.headers["Allow"]) == (405, "POST") if path != "//graphql" else status == 200
        assert page.ask("HEAD", address)[0] in (200, 405)
        assert page.ask("POST", address)[0] == 415, "Dagster takes the query of a form from its address"
    page.ask("GET", f"/graphql?query={quote(LAUNCH)}", {"Accept": "text/html"})
    assert page.runs() == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "["},
        {"Origin": ""},
        {"Host": "evil.example:3000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Host": "["},
        {"Host": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    ],
)
def test_a_page_of_another_site_or_under_another_name_is_refused_everything(
    page: Page, headers: dict[str, str]
) -> None:
    before = page.runs()
    assert page.graphql(LAUNCH, headers)[0] in (400, 403)
    assert page.ask("POST", "/report_asset_materialization/sales", {**JSON, **headers}, "{}")[0] in (400, 403)
    assert page.ask("GET", "/server_info", headers)[0] in (400, 403)
    assert page.ask("GET", "/graphql", {**UPGRADE, **headers})[0] in (400, 403)
    assert page.ask("OPTIONS", "/graphql", {**headers, "Access-Control-Request-Method": "POST"})[0] in (400, 403)
    assert page.runs() == before
    assert page.ask("GET", "/graphql", UPGRADE)[0] == 101, "so it is the header"


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "multipart/form-data", ""],
)
def test_a_post_that_a_browser_sends_to_other_sites_unasked_is_refused(page: Page, kind: str) -> None:
    before = page.runs()
    headers = {"Content-Type": kind} if kind else {}
    assert page.ask("POST", "/graphql", headers, json.dumps({"query": LAUNCH}))[0] == 415
    assert page.ask("POST", f"/graphql?query={quote(LAUNCH)}", headers)[0] == 415
    assert page.runs() == before


def test_a_proxy_is_known_by_dagster_url(page: Page) -> None:
    proxy = {"Origin": "https://dagster.example.com", "Sec-Fetch-Site": "same-origin"}
    query = "{version}"
    assert page.graphql(query, {**proxy, "Host": "dagster.example.com"})[0] == 200, "it passes the host on"
    assert page.graphql(query, proxy)[0] == 200, "it does not"
    status, _, body = page.ask("GET", "/", {"Host": "dagster2.example.com:8080"})
    assert status == 403
    assert b"dagster_url = 'http://dagster2.example.com:8080'" in body


def test_the_names_of_a_server_are_those_it_is_given() -> None:
    import socket

    machine = socket.gethostname().lower()
    assert names_for("127.0.0.1", "") == {"localhost", "127.0.0.1"}
    assert names_for("0.0.0.0", "http://Desk.example.com:3000/x") == {  # noqa: S104 - nothing is bound
        "localhost", "0.0.0.0", "desk.example.com", machine  # noqa: S104
    }  # fmt: skip
    assert names_for("build-box", "") >= {"localhost", "build-box", machine}


def test_a_dagster_that_starts_its_web_server_in_another_way_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._cli import dev

    class Other:
        @staticmethod
        def main(**_: object) -> None:
            dev.open_ipc_subprocess([sys.executable, "-m", "dagster._daemon", "run"])  # type: ignore[attr-defined]

    monkeypatch.setattr(dev, "open_ipc_subprocess", dev.open_ipc_subprocess)  # type: ignore[attr-defined]
    monkeypatch.setattr(dev, "dev_command", Other)
    with pytest.raises(RuntimeError, match="no guard"):
        dagster_internals.dev([], "guarded")
