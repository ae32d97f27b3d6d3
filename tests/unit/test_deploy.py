"""`deploy/`: all names in compose.yaml and the Dockerfile exist in the product or in the repository.

The tests have no container engine, so they read the files: the called programs parse the commands, variables are loaded
as settings, and the script that creates the bucket runs against a server.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import boto3
import click
import pytest
import yaml
from dagster._daemon.cli import create_dagster_daemon_cli
from dagster_webserver.cli import dagster_webserver
from dagster_webserver.webserver import DagsterWebserver
from packaging.requirements import Requirement
from sqlalchemy import make_url

from drainmark.jobs.protocol.records.addresses import prefix_of
from drainmark.resources.settings import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("daemon", "web", "bucket")
PROGRAMS: dict[str, click.Command] = {
    "drainmark.orchestration.dagster_page.web_server": dagster_webserver,
    "dagster-daemon": create_dagster_daemon_cli(),
}
FILES = {"/srv/workspace.yaml": ROOT / "workspace.yaml", "/srv/dagster/dagster.yaml": ROOT / "dagster.yaml"}
"""Path in the image -> the file that the Dockerfile copies there."""


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with their arguments."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in whole.splitlines() if line]


def last(name: str) -> str:
    return [text for found, text in instructions() if found == name][-1]


def image_environment() -> dict[str, str]:
    return dict(item.split("=", 1) for item in last("ENV").split())


def filled(value: str) -> str:
    """Return a value of compose.yaml with each variable replaced by its name in lower case."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: match[1].lower(), value)


def environment_of(service: str) -> dict[str, str]:
    return {name: filled(value) for name, value in SERVICES[service]["environment"].items()}


def parsed(command: list[str]) -> dict[str, Any]:
    """Let the called program parse a command line, which refuses unknown options; return the parameters."""
    command = command[2:] if command[:2] == ["python", "-m"] else command
    program, arguments = PROGRAMS[command[0]], [str(FILES.get(word, word)) for word in command[1:]]
    if isinstance(program, click.Group):
        program = program.commands[arguments.pop(0)]
    return program.make_context(command[0], arguments).params


# --- the Dockerfile -----------------------------------------------------------------------------------------------


def test_the_image_is_pinned_and_its_user_is_not_root() -> None:
    images = [text.split()[0] for name, text in instructions() if name == "FROM"]
    images += [SERVICES[name]["image"] for name in SERVICES if name not in OURS]
    assert all(re.fullmatch(r"[\w/-]+:\S*\d\S*\d\S*", image) for image in images), images
    assert int(last("USER")) > 0
    assert f"useradd --uid {last('USER')} " in (DEPLOY / "Dockerfile").read_text()


def test_what_the_image_is_made_of_is_in_the_repository() -> None:
    copied = [text.split() for name, text in instructions() if name == "COPY"]
    files = {words[-1]: words[-2] for words in copied if words[-1].startswith("/")}
    assert {place: ROOT / name for place, name in files.items()} == FILES
    assert all((ROOT / words[-2]).exists() for words in copied)
    kept = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() for name in kept)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = Requirement(next(iter(re.findall(r"'(drainmark\[.*?\])'", (DEPLOY / "Dockerfile").read_text()))))
    assert wheel.extras <= set(project["optional-dependencies"])
    started = [found for _, text in instructions() for found in re.findall(r'python"?,? "?-m"?,? "?([\w.]+)', text)]
    assert started
    assert all(importlib.util.find_spec(name) for name in started)


def test_nothing_that_the_package_is_made_of_is_kept_from_the_image() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    linked = {path.resolve().name for path in (ROOT / "drainmark").iterdir() if path.is_symlink()}
    shipped = {path.resolve().name for path in (ROOT / "orchestration" / "shipped").iterdir()}
    read = {"pyproject.toml", "requirements.lock", "README.md", "drainmark"}
    assert linked | shipped | read <= kept


# --- compose.yaml -------------------------------------------------------------------------------------------------


def test_its_commands_are_those_of_the_programs() -> None:
    assert parsed(SERVICES["daemon"]["command"])["workspace"]
    web = parsed(json.loads(last("CMD")))
    assert "command" not in SERVICES["web"], "it runs what the image runs"
    assert web["host"] == "0.0.0.0"  # noqa: S104 - inside a container
    published = [port.split(":") for port in SERVICES["daemon"]["ports"]]
    assert published == [["127.0.0.1", str(web["port"]), str(web["port"])]]
    assert last("EXPOSE") == str(web["port"])
    parsed(SERVICES["daemon"]["healthcheck"]["test"][1:])


def test_the_health_of_the_web_page_is_asked_where_it_tells() -> None:
    found = re.search(r"127.0.0.1:(\d+)(/\w+)'", last("HEALTHCHECK"))
    assert found
    assert found[1] == last("EXPOSE")
    routes = [getattr(route, "path", None) for route in DagsterWebserver.build_routes(_Unserved())]
    assert found[2] in routes


class _Unserved(DagsterWebserver):
    """The routes of the web page, without an instance."""

    def __init__(self) -> None:
        self._app_path_prefix = ""
        self._uses_app_path_prefix = False


@pytest.mark.parametrize("service", OURS)
def test_its_variables_are_settings(service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = {**image_environment(), **environment_of(service)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    set_here = {name.removeprefix("DRAINMARK_").lower() for name in given if name.startswith("DRAINMARK_")}
    assert set_here <= settings.model_fields_set
    assert str(settings.home) == image_environment()["DRAINMARK_HOME"]
    assert settings.s3_endpoint_url == "http://s3:9000"


def test_addresses_and_passwords_are_those_of_the_servers() -> None:
    ours = environment_of("daemon")
    registry, server = make_url(ours["DRAINMARK_REGISTRY_URL"]), environment_of("postgres")
    assert registry.get_dialect()().driver == "psycopg"
    assert (registry.host, registry.username, registry.password, registry.database) == (
        *("postgres", server["POSTGRES_USER"]),
        *(server["POSTGRES_PASSWORD"], server["POSTGRES_DB"]),
    )
    store = environment_of("s3")
    assert ours["DRAINMARK_S3_ENDPOINT_URL"].rpartition(":")[2] == SERVICES["s3"]["command"][-1].removeprefix(":")
    assert (ours["AWS_ACCESS_KEY_ID"], ours["AWS_SECRET_ACCESS_KEY"]) == (
        *(store["MINIO_ROOT_USER"], store["MINIO_ROOT_PASSWORD"]),
    )


def test_what_is_durable_is_in_volumes_and_what_is_mounted_is_there() -> None:
    mounts = [filled(mount).split(":") for name in SERVICES for mount in SERVICES[name].get("volumes", ())]
    assert {place[0] for place in mounts if re.fullmatch(r"\w+", place[0])} - {"project"} == set(COMPOSE["volumes"])
    ours = {place[1]: place[0] for place in (filled(mount).split(":") for mount in SERVICES["daemon"]["volumes"])}
    variables = image_environment()
    assert {variables["DRAINMARK_HOME"], variables["DAGSTER_HOME"], last("WORKDIR")} <= set(ours)
    assert (DEPLOY / ours["/srv/dagster/dagster.yaml"]).resolve() == FILES["/srv/dagster/dagster.yaml"]
    build = SERVICES["daemon"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"


def test_the_services_of_a_run_are_one_host() -> None:
    """A lease and Terminate use the host name and the pid."""
    assert SERVICES["web"]["network_mode"] == SERVICES["web"]["pid"] == "service:daemon"
    assert SERVICES["web"]["volumes"] == SERVICES["daemon"]["volumes"]


def test_the_bucket_of_the_tables_is_made_once(s3_server: str, s3_credentials: None) -> None:
    command = SERVICES["bucket"]["command"]
    assert command[:2] == ["python", "-c"]
    given = {**environment_of("bucket"), "DRAINMARK_S3_ENDPOINT_URL": s3_server}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", command[2]], env={**os.environ, **given}, check=True)
    client = boto3.client("s3", endpoint_url=s3_server)
    bucket, _ = prefix_of(given["DRAINMARK_TABLES_URL"])
    assert bucket in [f"s3://{found['Name']}" for found in client.list_buckets()["Buckets"]]


def test_what_compose_waits_for_is_there() -> None:
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[name]
