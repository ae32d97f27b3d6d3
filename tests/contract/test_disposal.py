"""Objects that are done with are moved below another prefix, or deleted (V153)."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from jobs.errors import ObjectMissing
from jobs.operators.directory_scan import DirectoryScan
from jobs.runtime.objects import identity_of_object
from resources.inputs import Inputs
from resources.object_store import ObjectStore

pytestmark = [pytest.mark.usefixtures("s3_credentials"), pytest.mark.seed("V153")]


@pytest.fixture
def bucket() -> str:
    return f"bucket-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(s3_server: str, bucket: str) -> ObjectStore:
    made = ObjectStore(s3_server)
    made.client.create_bucket(Bucket=bucket)
    return made


def keys(store: ObjectStore, bucket: str) -> list[str]:
    return [facts.key for page in store.pages(bucket) for facts in page]


@pytest.mark.parametrize("after", ["move", "delete"])
def test_an_object_goes_if_it_is_the_one_that_was_processed(
    store: ObjectStore, bucket: str, tmp_path: Path, after: str
) -> None:
    names = ["in/a.txt", "in/deep/b.txt", "in/changed.txt", "in/gone.txt"]
    for name in names:
        store.put(bucket, name, name.encode())
    identities = {name: identity_of_object(store.head(bucket, name)) for name in names}
    store.put(bucket, "in/changed.txt", b"another one")
    store.delete(bucket, ["in/gone.txt"])
    move_to = f"s3://{bucket}/done" if after == "move" else None
    scan = DirectoryScan(path=f"s3://{bucket}/in", after=after, move_to=move_to, after_when="checkpointed")  # type: ignore[arg-type]
    inputs = Inputs(store, spool_bytes=1, root=tmp_path)
    files = [(f"s3://{bucket}/{name}", identities[name], number) for number, name in enumerate(names, 1)]
    assert inputs.dispose(files, scan) == 2
    moved = ["done/a.txt", "done/deep/b.txt"] if after == "move" else []
    assert keys(store, bucket) == [*moved, "in/changed.txt"]
    assert inputs.dispose(files, scan) == 0, "again is nothing"
    if after == "move":
        assert store.get(bucket, "done/deep/b.txt") == b"in/deep/b.txt"
    with pytest.raises(ObjectMissing):
        store.copy(bucket, "in/gone.txt", bucket, "x")
