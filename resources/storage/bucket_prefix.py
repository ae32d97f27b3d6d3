"""A prefix of a bucket: the keys of paths relative to it, and the objects at these keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3_connection import PARALLEL


@dataclass(frozen=True, slots=True)
class BucketPrefix:
    """The objects of a bucket with keys that begin with the same prefix.

    Attributes:
        store: the client.
        bucket: its name.
        prefix: of the keys, without a slash at its ends; may be empty.
    """

    store: ObjectStore
    bucket: str
    prefix: str

    def key(self, path: str) -> str:
        """Return the key of a path."""
        return f"{self.prefix}/{path}".strip("/")

    def below(self, path: str) -> str:
        """Return the prefix of the keys below a folder; empty for a whole bucket."""
        key = self.key(path)
        return f"{key}/" if key else ""

    def content(self, path: str) -> bytes:
        """Return the content of an object."""
        return self.store.get(self.bucket, self.key(path))

    def contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield objects in order, and fetch a few ahead: this hides the bucket's latency, and memory stays bounded."""
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="s3") as pool:
            ahead: deque[Future[bytes]] = deque()
            for path in paths:
                ahead.append(pool.submit(self.content, path))
                if len(ahead) == PARALLEL:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
