"""`deploy/`: all names in compose.yaml, the manifests and the Dockerfile exist in the product or in the repository.

The tests have no container engine, so they read the files: the called programs parse the commands, variables are loaded
as settings, and the scripts run. `make deploy-check` gives them the schemas of Kubernetes, too.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import shlex
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
MANIFESTS: list[tuple[Path, dict[str, Any]]] = [
    (path, each)
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for each in yaml.safe_load_all(path.read_text())
]
OURS = ("drainmark", "bucket", "backup")
PROGRAMS: dict[str, click.Command] = {
    "drainmark.orchestration.dagster_page.web_server": dagster_webserver,
    "dagster-daemon": create_dagster_daemon_cli(),
}
FILES = {
    "/srv/workspace.yaml": ROOT / "workspace.yaml",
    "/srv/dagster/dagster.yaml": ROOT / "dagster.yaml",
    "/srv/entrypoint.sh": DEPLOY / "entrypoint.sh",
}
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
    return re.sub(r"\$\{(\w+):[?-][^}]*\}", lambda match: match[1].lower(), value)


def environment_of(service: str) -> dict[str, str]:
    return {name: filled(value) for name, value in SERVICES[service]["environment"].items()}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the secrets that the script makes."""
    folder = tmp_path_factory.mktemp("made") / "secrets"
    subprocess.run([str(DEPLOY / "make_secrets.sh"), str(folder)], check=True)
    return folder


def started() -> dict[str, list[str]]:
    """Return the commands that the image's script starts, by program, with the variables of the image."""
    text = (DEPLOY / "entrypoint.sh").read_text()
    for name, value in image_environment().items():
        text = text.replace(f'"${name}"', value)
    found = (shlex.split(line.removesuffix(" &")) for line in text.splitlines() if line.endswith(" &"))
    commands = (words[2:] if words[:2] == ["python", "-m"] else words for words in found)
    return {words[0]: words for words in commands}


def parsed(command: list[str]) -> dict[str, Any]:
    """Let the called program parse a command line, which refuses unknown options; return the parameters."""
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
    texts = [*(text for _, text in instructions()), (DEPLOY / "entrypoint.sh").read_text()]
    named = [found for text in texts for found in re.findall(r"python -m ([\w.]+)|from (drainmark[\w.]+) import", text)]
    assert len(named) == 3
    assert all(importlib.util.find_spec(name or other) for name, other in named)


def test_nothing_that_the_package_is_made_of_is_kept_from_the_image() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    linked = {path.resolve().name for path in (ROOT / "drainmark").iterdir() if path.is_symlink()}
    shipped = {path.resolve().name for path in (ROOT / "orchestration" / "shipped").iterdir() if path.is_symlink()}
    read = {"pyproject.toml", "requirements.lock", "README.md", "drainmark"}
    assert linked | shipped | read <= kept


# --- compose.yaml -------------------------------------------------------------------------------------------------


def test_its_commands_are_those_of_the_programs() -> None:
    commands = started()
    assert commands.keys() == PROGRAMS.keys()
    assert parsed(commands["dagster-daemon"])["workspace"]
    web = parsed(commands["drainmark.orchestration.dagster_page.web_server"])
    assert web["host"] == "0.0.0.0"  # noqa: S104 - inside a container
    assert json.loads(last("CMD")) == ["services"]
    assert "command" not in SERVICES["drainmark"], "it runs what the image runs"
    published = [port.split(":") for port in SERVICES["drainmark"]["ports"]]
    assert published == [["127.0.0.1", str(web["port"]), str(web["port"])]]
    assert last("EXPOSE") == str(web["port"])


def test_the_health_of_both_services_is_asked_where_they_tell() -> None:
    asked = SERVICES["drainmark"]["healthcheck"]["test"][1]
    parsed(asked.partition(" && ")[0].split())
    found = re.search(r"127.0.0.1:(\d+)(/\w+)'", asked)
    assert found
    assert found[1] == last("EXPOSE")
    probes = container()
    parsed(probes["livenessProbe"]["exec"]["command"])
    routes = [getattr(route, "path", None) for route in DagsterWebserver.build_routes(_Unserved())]
    assert {found[2], probes["readinessProbe"]["httpGet"]["path"]} <= set(routes)


class _Unserved(DagsterWebserver):
    """The routes of the web page, without an instance."""

    def __init__(self) -> None:
        self._app_path_prefix = ""
        self._uses_app_path_prefix = False


@pytest.mark.parametrize("service", ["drainmark", "backup", "kubernetes"])
def test_its_variables_are_settings(
    service: str, secrets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {**image_environment(), **(environment_of(service) if service in SERVICES else environment_of_pod())}
    for name, value in given.items():
        monkeypatch.setenv(name, re.sub("^/run/secrets(/drainmark)?", str(secrets), value))
    settings = load_settings()
    set_here = {name.removeprefix("DRAINMARK_").removesuffix("_FILE").lower() for name in given if "DRAINMARK" in name}
    assert set_here <= settings.model_fields_set
    assert str(settings.home) == image_environment()["DRAINMARK_HOME"]
    assert settings.registry_url == (secrets / "registry_url").read_text()


def test_no_secret_is_in_an_environment_and_each_service_has_its_own(secrets: Path) -> None:
    assert {each["file"] for each in COMPOSE["secrets"].values()} == {
        f"secrets/{path.name}" for path in secrets.iterdir()
    }
    assert secrets.stat().st_mode & 0o777 == 0o700
    for name, service in SERVICES.items():
        named = (
            [value for value in service["environment"].values() if value.startswith("/run/secrets/")]
            if ("environment" in service)
            else ["/run/secrets/s3.json"]
        )
        assert {value.removeprefix("/run/secrets/") for value in named} == set(service["secrets"]), name
        assert not re.search(r"(PASSWORD|SECRET|KEY)$", " ".join(service.get("environment", ())), re.MULTILINE)
    assert [name for name in SERVICES if "aws_admin" in SERVICES[name]["secrets"]] == ["bucket"]


def test_addresses_and_passwords_are_those_of_the_servers(secrets: Path) -> None:
    registry, server = make_url((secrets / "registry_url").read_text()), environment_of("postgres")
    assert registry.get_dialect()().driver == "psycopg"
    assert (registry.host, registry.username, registry.password, registry.database) == (
        *("postgres", server["POSTGRES_USER"]),
        *((secrets / "postgres_password").read_text(), server["POSTGRES_DB"]),
    )
    address = environment_of("drainmark")["DRAINMARK_S3_ENDPOINT_URL"]
    assert address == environment_of("bucket")["DRAINMARK_S3_ENDPOINT_URL"]
    assert f"-s3.port={address.rpartition(':')[2]}" in SERVICES["s3"]["command"]
    known = {each["name"]: each for each in json.loads((secrets / "s3.json").read_text())["identities"]}
    bucket, _ = prefix_of(environment_of("drainmark")["DRAINMARK_TABLES_URL"])
    assert {action.partition(":")[2] for action in known["drainmark"]["actions"]} == {bucket.removeprefix("s3://")}
    for file, name in (("aws", "drainmark"), ("aws_admin", "admin")):
        profile = configparser.ConfigParser()
        profile.read(secrets / file)
        (pair,) = known[name]["credentials"]
        assert pair == {
            "accessKey": profile["default"]["aws_access_key_id"],
            "secretKey": profile["default"]["aws_secret_access_key"],
        }


def test_every_service_has_the_least_rights_and_limits() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"mem_limit", "cpus", "pids_limit"} <= service.keys(), name
        assert service["logging"]["options"].keys() >= {"max-size", "max-file"}, name
        assert name in OURS or "healthcheck" in service, name
    assert [name for name in SERVICES if "cap_add" in SERVICES[name]] == ["s3"]
    assert not [name for name in SERVICES if "network_mode" in SERVICES[name] or "pid" in SERVICES[name]]


def test_what_is_durable_is_in_volumes_and_what_is_mounted_is_there() -> None:
    mounts = [filled(mount).split(":") for name in SERVICES for mount in SERVICES[name].get("volumes", ())]
    assert {place[0] for place in mounts if re.fullmatch(r"\w+", place[0])} - {"project", "backup"} == set(
        COMPOSE["volumes"]
    )
    ours = {place[1]: place[0] for place in (filled(mount).split(":") for mount in SERVICES["drainmark"]["volumes"])}
    variables = image_environment()
    assert {variables["DRAINMARK_HOME"], variables["DAGSTER_HOME"], last("WORKDIR")} <= set(ours)
    pod = {each["mountPath"] for each in container()["volumeMounts"]}
    assert {variables["DRAINMARK_HOME"], variables["DAGSTER_HOME"]} <= pod
    assert all((DEPLOY / place[0]).exists() for place in mounts if place[0].startswith("."))
    build = SERVICES["drainmark"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"


def test_the_bucket_of_the_tables_is_made_once(s3_server: str, s3_credentials: None) -> None:
    command = SERVICES["bucket"]["command"]
    assert command[:2] == ["python", "-c"]
    kept = {name: value for name, value in os.environ.items() if name != "AWS_SHARED_CREDENTIALS_FILE"}
    for _ in range(2):
        given = {**kept, "DRAINMARK_S3_ENDPOINT_URL": s3_server}
        subprocess.run([sys.executable, "-c", command[2]], env=given, check=True)
    client = boto3.client("s3", endpoint_url=s3_server)
    bucket, _ = prefix_of(environment_of("drainmark")["DRAINMARK_TABLES_URL"])
    assert bucket in [f"s3://{found['Name']}" for found in client.list_buckets()["Buckets"]]


def test_the_backup_has_the_tables_and_what_is_at_home(s3_server: str, s3_credentials: None, tmp_path: Path) -> None:
    client = boto3.client("s3", endpoint_url=s3_server)
    client.create_bucket(Bucket="kept")
    for key in ("t/lake/rows/1.parquet", "t/checkpoints/app/2.json", "elsewhere/lake/3.parquet"):
        client.put_object(Bucket="kept", Key=key, Body=key.encode())
    (tmp_path / "home" / "buffers").mkdir(parents=True)
    (tmp_path / "home" / "buffers" / "rows").write_text("pushed")
    (tmp_path / "home" / "inbox").mkdir()
    given = {"HOME": tmp_path / "home", "TABLES_URL": "s3://kept/t", "S3_ENDPOINT_URL": s3_server}
    given["STATE_STORE"] = "s3://elsewhere/states"
    variables = {f"DRAINMARK_{name}": str(value) for name, value in given.items()}
    command = [sys.executable, str(DEPLOY / "backup.py"), str(tmp_path / "backups")]
    said = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    kept = Path(said.stdout.strip())
    assert {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*") if path.is_file()} == {
        "home/buffers/rows": "pushed",
        "tables/lake/rows/1.parquet": "t/lake/rows/1.parquet",
        "tables/checkpoints/app/2.json": "t/checkpoints/app/2.json",
    }
    assert list((tmp_path / "backups").iterdir()) == [kept]
    assert "s3://elsewhere/states" in said.stderr, "it is copied by other means, and now"
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    order = re.search(r"^ORDER = \((.*)\)$", (DEPLOY / "backup.py").read_text(), re.MULTILINE)
    assert order
    assert order[1].replace('"', "`").replace("`,", "/`,").rpartition(",")[0].replace("` ", "`") in page


def test_what_compose_waits_for_is_there() -> None:
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[name]


# --- kubernetes ---------------------------------------------------------------------------------------------------


def of_kind(kind: str, name: str = "drainmark") -> dict[str, Any]:
    (found,) = (each for _, each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def container() -> dict[str, Any]:
    (found,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment_of_pod() -> dict[str, str]:
    """Return the variables of the pod, with those of each other filled in, as Kubernetes does it."""
    found = {each["name"]: each.get("value", each["name"].lower()) for each in container()["env"]}
    return {name: re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value) for name, value in found.items()}


def test_the_names_of_the_manifests_are_those_of_each_other() -> None:
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    binding, conf = of_kind("RoleBinding"), json.loads(environment_of_pod()["DRAINMARK_SPARK_CONF"])
    assert [each["name"] for each in binding["subjects"]] == [pod["serviceAccountName"]]
    assert binding["roleRef"]["name"] == of_kind("Role")["metadata"]["name"]
    assert of_kind("ServiceAccount", conf["spark.kubernetes.authenticate.executor.serviceAccountName"])
    assert conf["spark.kubernetes.container.image"] == container()["image"]
    folders = {each["mountPath"]: each["name"] for each in container()["volumeMounts"]}
    template = Path(conf["spark.kubernetes.executor.podTemplateFile"])
    (volume,) = (each for each in pod["volumes"] if each["name"] == folders[str(template.parent)])
    assert template.name in of_kind("ConfigMap", volume["configMap"]["name"])["data"]
    made = re.findall(r"kubectl create (?:secret generic|configmap) (\S+)", CLUSTER_PAGE)
    wanted = {each[kind].get("name", each[kind].get("secretName")) for each in pod["volumes"] for kind in each
              if kind in ("configMap", "secret")} - {"drainmark-executor"}  # fmt: skip
    secrets = {name.rpartition(".")[2] for name in conf if name.startswith("spark.kubernetes.executor.secrets.")}
    assert wanted | secrets == set(made)


CLUSTER_PAGE = (ROOT / "docs" / "how-to" / "cluster.md").read_text()
CHECKED = ROOT / "build" / "deploy-check"


@pytest.mark.skipif(not CHECKED.is_dir(), reason="make deploy-check installs the schemas of Kubernetes")
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_manifests_are_valid(version: str) -> None:
    command = [
        sys.executable,
        "-m",
        "kubernetes_validate",
        "--strict",
        "-k",
        version,
        *sorted({str(p) for p, _ in MANIFESTS}),
    ]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(CHECKED)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr.count("passed") + ended.stdout.count("passed") == len(MANIFESTS)
    damaged = {**of_kind("Role"), "rulez": []}
    ended = subprocess.run(
        [*command[:6], "/dev/stdin"], input=yaml.safe_dump(damaged), env={**os.environ, "PYTHONPATH": str(CHECKED)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode != 0
