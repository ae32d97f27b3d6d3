"""Copy what a backup needs into a new folder: tables in a bucket, then home, in the order of docs/how-to/deploy.md.

The registry is left out: `drainmark doctor --repair` rebuilds it. A `state_store` elsewhere, databases and folders of
sinks are copied afterwards, by their own tools.

    python deploy/backup.py FOLDER
"""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from drainmark.jobs.protocol.records.addresses import prefix_of
from drainmark.resources.settings import Settings, load_settings

ORDER = ("checkpoints", "state", "lake", "slices", "channels", "buffers")
"""The checkpoint tables name the files of the others, so what they name is copied after them."""


def main(folder: Path) -> None:
    settings, target = load_settings(), folder / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    partial = target.with_name(f"{target.name}.partial")
    for name in ORDER:
        (partial / "home").mkdir(parents=True, exist_ok=True)
        if (settings.home / name).is_dir():
            shutil.copytree(settings.home / name, partial / "home" / name)
        if settings.tables_url:
            _fetch(settings, name, partial / "tables")
    partial.rename(target)
    print(target)  # noqa: T201
    if settings.state_store != "delta":
        print(f"copy {settings.state_store}, the state_store, now: it is not in there", file=sys.stderr)  # noqa: T201


def _fetch(settings: Settings, name: str, target: Path) -> None:
    import boto3

    address, prefix = prefix_of(settings.tables_url)
    kind, _, bucket = address.partition("://")
    if kind != "s3":
        sys.exit(f"{settings.tables_url} is copied by tools of its own")
    session = boto3.Session(profile_name=settings.s3_profile, region_name=settings.s3_region)
    s3 = session.client("s3", endpoint_url=settings.s3_endpoint_url)
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}{name}/"):
        for found in page.get("Contents", ()):
            path = target / found["Key"].removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, found["Key"], str(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
