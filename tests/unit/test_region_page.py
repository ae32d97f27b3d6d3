"""A region's page: as a file that runs keep up to date, by `drainmark report`, and served read-only to this host."""

from __future__ import annotations

import http.client
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from by_hand import HandFed
from harness import verbs
from waiting import SOON, eventually

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.html_report import page_file, page_server, timeline
from drainmark.orchestration.html_report.page_file import PageFile, page_link, page_path
from drainmark.orchestration.html_report.page_server import Pages, PageServer, listening
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
_STARTED = '<span class="state STARTED">'


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    """Yield a region that processed three files in two groups."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    for name, values in {"a": ["1", "2"], "b": ["3"], "<i>c": []}.items():
        scene.write(name, values)
    scene.add("a", "b", "<i>c")
    scene.drain(2)
    yield scene
    place.registry.close()


def written(scene: HandFed) -> str:
    return page_path(scene.workplace.home, scene.region).read_text()


# --- the file ----------------------------------------------------------------------------------------------------


def test_the_page_is_written_at_each_outcome(fed: HandFed) -> None:
    assert "The newest 2 groups" in written(fed)
    assert _STARTED in written(fed)
    interventions.halt(fed.workplace, fed.region, "disk")
    assert '<span class="state HALTED">' in written(fed)
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    assert "rewound to 1" in written(fed)
    assert '<span class="state HALTED">' in written(fed), "the rewind leaves it so"
    assert [path.name for path in page_path(fed.workplace.home, fed.region).parent.iterdir()] == ["files.html"]


def test_between_groups_it_is_written_now_and_then(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = fed.workplace.store(fed.region).checkpoint
    monkeypatch.setattr(page_file, "EVERY_SECONDS", 0.0)
    file = PageFile(workplace=fed.workplace, region=fed.region, checkpoint=checkpoint, plan=None)
    assert page_file.is_due("group", file._due)
    assert not page_file.is_due("state", file._due)
    file.write()
    assert not page_file.is_due("group", file._due), "fifty times as long as it took"
    assert page_file.is_due("release", file._due)


def test_a_page_that_cannot_be_written_is_told_and_fails_nothing(fed: HandFed) -> None:
    page_path(fed.workplace.home, fed.region).unlink()
    page_path(fed.workplace.home, fed.region).parent.rmdir()
    (fed.workplace.home / "pages" / "by_hand").write_text("in the way")
    steps: list[str] = []
    owner = region_owner(fed.workplace, fed.region, report=lambda step, numbers: steps.append(step))
    owner.claim(fed.tables)
    owner.halts.halt("disk", trigger=None, operator=None, error=None)
    assert steps[-2:] == ["halt", "page"]
    owner.leave()


class _Tags(HTMLParser):
    """The tags of a page, each with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, set[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.setdefault(tag, set()).update(name for name, _ in attrs)


def test_names_and_errors_bring_no_tag_and_no_attribute_into_a_page(fed: HandFed) -> None:
    usual = _Tags(written(fed)).found
    said = "\"'><img src=x onerror=x></title></style><script>]]>--><style>\u202e\n"
    name = said.replace("/", "|")
    fed.write(name, ["1"])
    fed.add(name)
    fed.drain()
    with fed.owning() as owner:
        facts = dict.fromkeys(("message", "operator", "remedy", "trigger"), said)
        owner.halts.halt(said, trigger=said, operator=said, error={**facts, "location": f"{said}:3"})
    found = _Tags(written(fed)).found
    assert set(found) - set(usual) <= {"strong", "g", "path", "p", "div", "code"}
    assert {name for names in found.values() for name in names if name.startswith("on") or name == "src"} == set()
    assert "\u202e" not in written(fed)


# --- the verb ----------------------------------------------------------------------------------------------------


def test_the_verb_writes_the_page_and_says_where(fed: HandFed, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(fed.workplace.home)]
    target = page_path(fed.workplace.home, fed.region)
    target.unlink()
    assert invoke(["report", "by_hand", *home]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert "The newest 3 states" in target.read_text()
    other = fed.inbox.parent / "deep" / "page.html"
    assert invoke(["report", fed.region, "--last", "1", "--output", str(other), *home]) == 0
    assert "The newest 1 states" in other.read_text()
    for wrong in (fed.inbox, fed.inbox / "a" / "page.html"):
        assert invoke(["report", fed.region, "--output", str(wrong), *home]) == 2, "a folder, or below a file"
        assert "Traceback" not in capsys.readouterr().err
    assert invoke(["report", "by_hnad", *home]) == 2
    assert invoke(["report", fed.region, "--last", "0", *home]) == 2


def test_json_gives_the_values_and_writes_only_what_is_named(fed: HandFed, capsys: pytest.CaptureFixture[str]) -> None:
    page_path(fed.workplace.home, fed.region).unlink()
    told = verbs(fed.workplace.home, capsys)("report", fed.region)
    assert [group["last_id"] for group in told["groups"]] == [2, 3]
    assert told["states"][-1]["file"].endswith("/<i>c")
    assert told["graph"] is None, "nobody knows the code of a region that is fed by hand"
    assert told["status"]["committed_sequence_id"] == 3
    assert not page_path(fed.workplace.home, fed.region).exists()
    verbs(fed.workplace.home, capsys)("report", fed.region, "--output", fed.inbox / "page.html")
    assert (fed.inbox / "page.html").exists()


def test_the_verb_opens_the_page_in_the_browser_that_is_set(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = fed.inbox / "opened"
    browser = fed.inbox / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{opened}"\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "BROWSER": str(browser), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "report", fed.region, "--open"]
    ended = subprocess.run(
        [*command, "--home", str(fed.workplace.home)], env=environment, capture_output=True, text=True, check=True
    )
    assert opened.read_text().strip() == Path(ended.stdout.strip()).as_uri()


def test_a_report_loads_neither_dagster_nor_spark(fed: HandFed) -> None:
    program = (
        "import sys; from drainmark.orchestration.cli.main import invoke; code = invoke(sys.argv[1:]); "
        "print((code, [name for name in ('dagster', 'pyspark', 'boto3') if name in sys.modules]))"
    )
    command = [sys.executable, "-c", program, "report", fed.region, "--home", str(fed.workplace.home)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "(0, [])"


# --- served ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(fed: HandFed) -> Iterator[PageServer]:
    with PageServer(listening(0), Pages(fed.workplace)) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def asked(server: PageServer, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    host, port = server.socket.getsockname()
    with closing(http.client.HTTPConnection(host, port, timeout=SOON)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_the_pages_are_served(fed: HandFed, server: PageServer) -> None:
    status, headers, text = asked(server, f"/{fed.region}")
    assert status == 200
    assert "The newest 2 groups" in text
    assert "&lt;i&gt;c" in text
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert asked(server, "/")[2].count(f'href="/{fed.region}"') == 1
    assert asked(server, f"/{fed.region}", method="HEAD")[2] == ""


def test_what_is_served_is_looked_up_anew(fed: HandFed, server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not use a file that a run wrote, since a killed run writes none."""
    page_path(fed.workplace.home, fed.region).unlink()
    monkeypatch.setattr(page_server, "FRESH_SECONDS", 3600.0)
    assert _STARTED in asked(server, f"/{fed.region}")[2]
    interventions.halt(fed.workplace, fed.region, "disk")
    assert _STARTED in asked(server, f"/{fed.region}")[2], "kept for a moment, however often it is asked for"
    monkeypatch.setattr(page_server, "FRESH_SECONDS", 0.0)
    assert _STARTED not in asked(server, f"/{fed.region}")[2]


def test_there_is_nothing_but_known_pages_and_nothing_can_be_changed(fed: HandFed, server: PageServer) -> None:
    paths = (
        "/by_hand",
        "/by_hand/other",
        "/../registry.db",
        "/%2e%2e/registry.db",
        "/by_hand/files.html",
        "//etc/hosts",
    )
    for path in paths:
        assert asked(server, path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert asked(server, f"/{fed.region}", method=method)[0] == 501, method


def test_a_name_that_was_turned_to_this_host_is_refused(fed: HandFed, server: PageServer) -> None:
    port = server.socket.getsockname()[1]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        status, _, text = asked(server, f"/{fed.region}", Host=host)
        assert status == 421
        assert fed.region not in text
    assert asked(server, f"/{fed.region}", Host=f"localhost:{port}")[0] == 200


def test_a_table_that_cannot_be_read_is_said(fed: HandFed, server: PageServer) -> None:
    log = fed.workplace.home / "checkpoints" / fed.region / "_delta_log"
    for file in log.iterdir():
        file.write_text("{")
    assert asked(server, f"/{fed.region}")[0] == 503


def test_a_port_that_is_taken_is_not_insisted_on() -> None:
    with listening(0) as first, listening(first.getsockname()[1]) as second:
        assert second.getsockname()[0] == first.getsockname()[0] == "127.0.0.1"
        assert second.getsockname()[1] != first.getsockname()[1]


def test_the_server_ends_with_who_started_it(fed: HandFed) -> None:
    program = (
        "import subprocess, sys\n"
        "from drainmark.orchestration.html_report.page_server import listening\n"
        "socket = listening(0)\n"
        "command = [sys.executable, '-m', 'drainmark.orchestration.html_report.page_server', str(socket.fileno())]\n"
        "quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
        "child = subprocess.Popen(command, pass_fds=[socket.fileno()], **quiet)\n"
        "print(child.pid, socket.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DRAINMARK_HOME": str(fed.workplace.home)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child, port = map(int, parent.stdout.readline().split())
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SOON)) as connection:
        connection.request("GET", f"/{fed.region}")
        assert connection.getresponse().status == 200
    parent.kill()
    parent.communicate()
    eventually(lambda: not Path(f"/proc/{child}").exists())


# --- the address -------------------------------------------------------------------------------------------------


def test_the_address_is_that_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def linked(**values: Any) -> str | None:
        return page_link(Settings(home=tmp_path, project_root=tmp_path, **values), "app/start")

    assert linked() is None
    assert linked(pages_url="https://example.org/pages/") == "https://example.org/pages/app/start"
    monkeypatch.setenv("DRAINMARK_PAGES_URL", "javascript:alert(1)")
    with pytest.raises(UsageError, match="DRAINMARK_PAGES_URL"):
        load_settings(home=tmp_path)


def test_files_that_are_older_than_any_tick_are_drawn() -> None:
    scale = timeline._powers([1.79e9], 64.0)
    assert scale.height(1.79e9) == 64.0
