"""The S3 server of `deploy/compose.yaml`, started with its options and the secrets of `deploy/make_secrets.sh`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import seaweed
import yaml
from botocore.exceptions import ClientError
from ports import free_ports

from drainmark.resources.settings import Settings
from drainmark.resources.storage.object_store import object_store
from drainmark.resources.storage.store_probe import require_one_winner

pytestmark = pytest.mark.slow
DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Yield the address of the server, whose options are those of compose.yaml but for ports and folders."""
    subprocess.run([str(DEPLOY / "make_secrets.sh"), str(tmp_path / "secrets")], check=True)
    port, *others = free_ports(8)
    names = (
        "master.port",
        "volume.port",
        "filer.port",
        *(f"{part}.port.grpc" for part in ("master", "volume", "filer", "s3")),
    )
    (tmp_path / "data").mkdir()
    places = {"/data": str(tmp_path / "data"), "/run/secrets": str(tmp_path / "secrets"), "9000": str(port)}
    options = SERVICES["s3"]["command"]
    for place, here in places.items():
        options = [option.replace(place, here) for option in options]
    moved = [f"-{name}={other}" for name, other in zip(names, others, strict=True)]
    command = [str(seaweed.program()), *options, *moved, "-volume.minFreeSpace=1"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    health = SERVICES["s3"]["healthcheck"]["test"][-1].replace("9000", str(port))
    end = time.monotonic() + 120
    while not _answers(health):
        assert time.monotonic() < end, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.2)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


def test_services_may_use_the_bucket_of_the_tables_and_nothing_else(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for key, may_make in (("aws", False), ("aws_admin", True), ("aws_admin", True)):
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "secrets" / key))
        given = {**os.environ, "DRAINMARK_S3_ENDPOINT_URL": server}
        command = [sys.executable, "-c", SERVICES["bucket"]["command"][2]]
        made = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert (made.returncode == 0) is may_make, made.stderr
        assert may_make or "AccessDenied" in made.stderr
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "secrets" / "aws"))
    client = boto3.Session().client("s3", endpoint_url=server, region_name="us-east-1")
    client.put_object(Bucket="lake", Key="tables/1", Body=b"1")
    assert client.get_object(Bucket="lake", Key="tables/1")["Body"].read() == b"1"
    assert [each["Key"] for each in client.list_objects_v2(Bucket="lake")["Contents"]] == ["tables/1"]
    client.delete_object(Bucket="lake", Key="tables/1")
    for refused in (client.create_bucket, client.delete_bucket):
        with pytest.raises(ClientError, match="AccessDenied"):
            refused(Bucket="lake" if refused == client.delete_bucket else "other")
    settings = Settings(home=tmp_path, project_root=tmp_path, s3_endpoint_url=server, s3_region="us-east-1")
    require_one_winner(object_store(settings), "s3://lake", "tables/")
