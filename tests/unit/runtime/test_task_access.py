"""The data sent to tasks that read slices, and the source of addresses and credentials; without Spark or broker."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from waiting import SOON

from drainmark.jobs.errors import UsageError
from drainmark.jobs.errors.environment import ClusterRefused, EnvironmentFailed
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.inputs import task_answers
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.inputs.task_access import TaskAccess, references
from drainmark.resources.inputs.task_answers import told_to_tasks
from drainmark.resources.settings import load_settings

SECRET = "hush-hush%40"  # noqa: S105
TOML = f"""
[databases]
crm = "postgresql+psycopg://reader:{SECRET}@db/crm"

[kafka.main]
"bootstrap.servers" = "h:1"
"sasl.username" = "${{KAFKA_USER}}"
"sasl.password" = "${{KAFKA_PASSWORD}}"

[kafka.Written-Out]
bootstrap_servers = "h:2"
sasl_password = "{SECRET}"
"""


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegionAccess:
    (tmp_path / "drainmark.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_USER", "reader")
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    return Workplace(load_settings()).access("app/s")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a temporary folder with a path short enough for addresses of sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def sent(access: RegionAccess) -> TaskAccess:
    """Return the reach that a task on an executor gets."""
    with access.of_tasks(are_ours=False) as found:
        content = pickle.dumps(found)
    assert b"hush" not in content
    assert "hush" not in repr(found)
    given = pickle.loads(content)  # noqa: S301 - it was made here
    assert isinstance(given, TaskAccess)
    return given


def test_a_secret_that_is_written_out_is_sent_as_the_name_of_a_variable() -> None:
    clusters = {"eu": {"ssl.key.password": "x", "sasl_password": "a${B}", "sasl.password": "${C}", "ssl.ca.pem": "P"}}
    assert references(clusters) == {
        "eu": {
            "ssl.key.password": "${DRAINMARK_KAFKA__EU__SSL_KEY_PASSWORD}",
            "sasl_password": "${DRAINMARK_KAFKA__EU__SASL_PASSWORD}",
            "sasl.password": "${C}",
            "ssl.ca.pem": "P",
        }
    }


def test_executors_take_credentials_from_their_own_environment(
    access: RegionAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = sent(access)
    monkeypatch.setenv("KAFKA_PASSWORD", "another/word")
    monkeypatch.setenv("DRAINMARK_KAFKA__WRITTEN_OUT__SASL_PASSWORD", "third-word")
    monkeypatch.setenv("DRAINMARK_DATABASES__CRM", "postgresql+psycopg://other:w%2Frd@db/crm")
    main = there.kafka("t", servers="", cluster="main").conf
    names = ("bootstrap.servers", "sasl.username", "sasl.password")
    assert [main[name] for name in names] == ["h:1", "reader", "another/word"]
    assert there.kafka("t", servers="", cluster="Written-Out").conf["sasl.password"] == "third-word"
    assert there.kafka("t", servers="k:9", cluster=None).conf["bootstrap.servers"] == "k:9"
    url = there.database("crm").url
    assert (url.username, url.password) == ("other", "w/rd")
    assert there.variables == [
        "KAFKA_USER", "KAFKA_PASSWORD", "DRAINMARK_KAFKA__WRITTEN_OUT__SASL_PASSWORD", "DRAINMARK_DATABASES__CRM"
    ]  # fmt: skip
    assert (
        there.redacted("no another/word, third-word, w/rd nor w%2Frd, and h:1") == "no ***, ***, *** nor ***, and h:1"
    )


@pytest.mark.parametrize("value", [None, "no url hush-hush"])
def test_a_variable_that_an_executor_lacks_is_named_with_its_host(
    access: RegionAccess, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    there = sent(access)
    monkeypatch.delenv("KAFKA_PASSWORD")
    with pytest.raises(ClusterRefused, match=f"KAFKA_PASSWORD is not set on {socket.gethostname()}"):
        there.kafka("t", servers="", cluster="main")
    if value is not None:
        monkeypatch.setenv("DRAINMARK_DATABASES__CRM", value)
    with pytest.raises(ClusterRefused) as caught:
        there.database("crm")
    assert "DRAINMARK_DATABASES__CRM" in caught.value.message
    assert socket.gethostname() in caught.value.message
    assert "hush" not in str(caught.value)


def test_a_package_that_an_executor_lacks_is_named(
    access: RegionAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = sent(access)
    (tmp_path / "pg8000.py").write_text("raise ImportError('no libpq\\nhere')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setenv("DRAINMARK_DATABASES__CRM", "mysql+pymysql://reader@db/crm")
    for ask, name in (
        (lambda: there.kafka("t", servers="h:1", cluster=None), "confluent_kafka"),
        (lambda: there.database("crm"), "pymysql"),
    ):
        with pytest.raises(ClusterRefused, match=name):
            ask()
    monkeypatch.setenv("DRAINMARK_DATABASES__CRM", "postgresql+pg8000://reader@db/crm")
    with pytest.raises(ClusterRefused, match="cannot import the source's reader: no libpq"):
        there.database("crm")


def test_workers_of_this_machine_ask_the_run(access: RegionAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their environment may be that of a server that started before the credentials were set."""
    with access.of_tasks(are_ours=True) as given:
        content = pickle.dumps(given)
        assert b"hush" not in content
        there = pickle.loads(content)  # noqa: S301 - it was made here
        for name in ("KAFKA_USER", "KAFKA_PASSWORD"):
            monkeypatch.delenv(name)
        assert there.kafka("t", servers="", cluster="main").conf["sasl.password"] == SECRET
        assert there.redacted(f"no {SECRET}") == "no ***"
        assert there.database("crm").url.password == unquote(SECRET)
        with pytest.raises(UsageError, match="no database 'hr'"):
            there.database("hr")
        assert there.variables == []
        folder = Path(there.address).parent
        assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
    assert not folder.exists()


def test_workers_of_this_machine_find_the_same_certificates(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a resident server have another working folder, so relative paths become absolute."""
    text = '[databases]\ncrm = "postgresql+psycopg://db/crm?sslrootcert=ca.pem&sslmode=require&sslkey=gone.pem"\n'
    text += '[kafka.main]\n"bootstrap.servers" = "h:1"\n"ssl.ca.location" = "ca.pem"\n"sasl.username" = "ca.pem"\n'
    (tmp_path / "drainmark.toml").write_text(text)
    (tmp_path / "ca.pem").write_text("")
    monkeypatch.chdir(tmp_path)
    with Workplace(load_settings()).access("app/s").of_tasks(are_ours=True) as there:
        read, made = there.database("crm").url.query, there.kafka("t", servers="", cluster="main").conf
    ca = str(tmp_path / "ca.pem")
    assert read == {"sslrootcert": ca, "sslmode": "require", "sslkey": "gone.pem"}
    assert (made["ssl.ca.location"], made["sasl.username"]) == (ca, "ca.pem")


@pytest.mark.parametrize("are_ours", [True, False])
def test_a_cluster_that_the_settings_have_no_more_is_named(access: RegionAccess, are_ours: bool) -> None:
    with access.of_tasks(are_ours=are_ours) as there, pytest.raises(UsageError, match="no Kafka cluster 'gone' is set"):
        there.kafka("t", servers="", cluster="gone")


def test_tasks_that_ask_at_once_all_get_their_answers(access: RegionAccess) -> None:
    """A machine has as many workers as cores; a socket refuses a connection that does not fit its queue."""
    urls: list[str] = []
    with told_to_tasks(lambda kind, name: f"{kind} {name}") as address:
        begin = threading.Barrier(64)

        def ask() -> None:
            begin.wait()
            urls.append(task_answers.asked(address, "databases", "crm"))

        tasks = [threading.Thread(target=ask) for _ in range(64)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
    assert urls == ["databases crm"] * 64


def test_a_queue_that_is_full_is_waited_for(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(place / "run"))
        server.listen(0)
        first.connect(str(place / "run"))
        answers: list[str] = []
        task = threading.Thread(target=lambda: answers.append(task_answers.asked(str(place / "run"), "k", "n")))
        task.start()
        task.join(0.2)
        assert (task.is_alive(), answers) == (True, [])
        server.accept()[0].close()
        with server.accept()[0] as asking:
            asking.recv(100)
            asking.sendall(b'{"value": "v"}')
        task.join()
    assert answers == ["v"]


def test_tasks_ask_also_where_the_temporary_folder_has_a_long_path(
    access: RegionAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with access.of_tasks(are_ours=True) as there:
        assert there.address.startswith(str(long))
        assert there.database("crm").url.host == "db"
        os.utime(Path(there.address).parent, (0, 0))
        with access.of_tasks(are_ours=True):  # it does not treat the other folder as a leftover of a killed run
            assert there.database("crm").url.host == "db"
    assert list(long.iterdir()) == []


def test_a_run_that_does_not_answer_is_no_fault_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_answers, "_ANSWER_SECONDS", 0.1)
    gone = TaskAccess(region="app/s", address=str(tmp_path / "run"))
    far = TaskAccess(region="app/s", address=str(tmp_path / ("t" * 100) / "run"))
    for away in (gone, far):
        with pytest.raises(EnvironmentFailed, match="'crm'"):
            away.database("crm")
    with told_to_tasks(lambda kind, name: 1 / 0) as address, pytest.raises(EnvironmentFailed, match="'crm'"):
        TaskAccess(region="app/s", address=address).database("crm")


def test_one_that_asks_nothing_does_not_keep_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_answers, "_ANSWER_SECONDS", 2 * SOON)
    with socket.socket(socket.AF_UNIX) as silent:
        ended = threading.Event()

        def run() -> None:
            with told_to_tasks(lambda kind, name: "") as address:
                silent.connect(address)
                assert task_answers.asked(address, "k", "n") == ""
            ended.set()

        threading.Thread(target=run, daemon=True).start()
        assert ended.wait(SOON)


def test_what_a_killed_run_left_is_removed_by_the_next(place: Path) -> None:
    names = ("killed", "empty", "young", "alive")
    folders = {name: place / f"drainmark-tell-{name}" for name in names}
    servers = {name: socket.socket(socket.AF_UNIX) for name in ("killed", "alive")}
    for name, folder in folders.items():
        folder.mkdir()
        if name in servers:
            servers[name].bind(str(folder / "run"))
            servers[name].listen()
        if name != "young":
            os.utime(folder, (0, 0))
    servers["killed"].close()
    with told_to_tasks(lambda kind, name: ""):
        assert {name for name, folder in folders.items() if folder.exists()} == {"young", "alive"}
    servers["alive"].close()
