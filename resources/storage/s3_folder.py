"""Tables in a bucket: files by boto3, commits by `deltalake` with put-if-absent (design.md §3.2, D3, D13–D17).

Python writes small files by one conditional put and reads files whole. Spark writes and reads copies on this machine,
which are uploaded and fetched here, so that no S3A bundle is needed; files are immutable, so a copy by path is sound.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError, ObjectChanged, ObjectMissing, StoreRefused, StoreUnavailable
from drainmark.resources.storage.folder import Entry, Folder, nothing
from drainmark.resources.storage.object_store import CONNECT_SECONDS, PARALLEL, ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

_REQUEST_SECONDS = 30
_RETRIES = 4
_RETRY_SECONDS = 40
"""`deltalake` gives one call up after at most the sum of both; it lets the heartbeat of the lease go on meanwhile."""

_NOISE = re.compile(r"\x1b\[[0-9;]*m|\s*↳\s*|\s+")  # deltalake draws its chain of causes as a coloured tree
_STATUS = re.compile(r"status code (\d{3})|\b(\d{3}) (?:Forbidden|Not Found|Bad Request|Moved|Unauthorized)")


class S3Folder(Folder):
    """A prefix of a bucket.

    Args:
        store: the client.
        bucket: its name.
        prefix: of the keys, without a slash at its ends; may be empty.
        copies: folder of this process for the local copies of files; none where Spark reads and writes nothing.
    """

    def __init__(self, store: ObjectStore, bucket: str, prefix: str, copies: Path | None = None) -> None:
        self.store = store
        self.bucket = bucket
        self.prefix = prefix
        self.copies = copies
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")

    def __truediv__(self, path: str) -> S3Folder:
        return S3Folder(self.store, self.bucket, self._key(path), self.copies / path if self.copies else None)

    def copied_to(self, copies: Path) -> S3Folder:
        return S3Folder(self.store, self.bucket, self.prefix, copies)

    def storage_options(self) -> dict[str, str]:
        access_key, secret_key, token = self.store.credentials()
        address = self.store.address
        return {
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
            **({"aws_session_token": token} if token else {}),
            "aws_region": self.store.region_name,
            "aws_endpoint_url": address,
            "aws_endpoint_url_s3": address,
            "aws_allow_http": str(address.startswith("http://")).lower(),
            "aws_conditional_put": "etag",  # the fence: a log entry is written only where there is none
            "aws_s3_allow_unsafe_rename": "false",  # what is not set here, the environment may set otherwise
            "aws_skip_signature": "false",
            "connect_timeout": f"{CONNECT_SECONDS:g}s",
            "timeout": f"{_REQUEST_SECONDS}s",
            "max_retries": str(_RETRIES),
            "retry_timeout": f"{_RETRY_SECONDS}s",
        }

    def failure(self, doing: str, error: BaseException) -> DrainmarkError:
        text = self.store.redacted(_NOISE.sub(" ", str(error)))[:400]
        found = _STATUS.search(text)
        status = int(found.group(1) or found.group(2)) if found else 0
        msg = f"cannot {doing} {self.uri}: {text}"
        if 300 <= status < 500 and status not in (408, 429) and "Expired" not in text:
            return StoreRefused(msg, remedy="look at tables_url, s3_region, s3_profile and the bucket's policy")
        return StoreUnavailable(msg, remedy="a new attempt starts by itself; look at the store if it stays so")

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, OSError) or "object store" in str(error) or "S3 error" in str(error)

    def require_put_if_absent(self) -> None:
        """Write an object twice: a store that takes both knows no conditional put, and no commit would be safe (D3).

        Raises:
            StoreRefused: it does.
        """
        key = self._key(f"_staged/put-if-absent-{uuid.uuid4().hex}")
        try:
            for content in (b"1", b"2"):
                self.store.put(self.bucket, key, content, if_absent=True)
        except ObjectChanged:  # of the first put, too: it was sent again, since its reply was lost
            return
        finally:
            self.store.delete(self.bucket, [key])
        msg = f"the store of {self.uri} overwrites objects in spite of If-None-Match: two owners could both commit"
        raise StoreRefused(msg, remedy="use a store with conditional writes (AWS, MinIO, R2, Ceph)")

    # --- files -----------------------------------------------------------------------------------------------------

    def write(self, path: str, data: pa.Buffer) -> str:
        try:
            return self.store.put(self.bucket, self._key(path), memoryview(data).tobytes(), if_absent=True)
        except ObjectChanged as error:  # also the answer to a put of ours whose reply was lost: it is a new name then
            raise FileExistsError(path) from error

    def size(self, path: str) -> int:
        return self.stamp(path)[0]

    def stamp(self, path: str) -> tuple[int, str]:
        """Return the object's bytes and etag."""
        try:
            found = self.store.head(self.bucket, self._key(path))
        except ObjectMissing as error:
            raise FileNotFoundError(path) from error
        return found.size, found.etag

    def source(self, path: str) -> Any:
        return _reader(self._content(path))

    def read(
        self,
        paths: Sequence[str],
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
    ) -> pa.Table:
        import pyarrow as pa
        import pyarrow.dataset as ds

        if not paths:
            return nothing(schema, columns)
        wanted = list(columns) if columns is not None else None
        form = ds.ParquetFileFormat()
        fragments = (form.make_fragment(_reader(content)) for content in self._contents(paths))
        return pa.concat_tables([part.to_table(schema=schema, columns=wanted, filter=where) for part in fragments])

    def read_each(self, paths: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq

        for content in self._contents(paths):
            with pq.ParquetFile(_reader(content)) as file:
                yield file.read(columns=list(columns) if columns is not None else None)

    # --- what is there ---------------------------------------------------------------------------------------------

    def names(self, path: str = "") -> Iterator[str]:
        return self.store.names(self.bucket, self._below(path))

    def modified(self, path: str) -> Mapping[str, float]:
        below = self._below(path)
        pages = self.store.pages(self.bucket, below, recursive=False)
        return {found.key.removeprefix(below): found.modified for page in pages for found in page}

    def delete(self, path: str) -> None:
        if self.copies:
            shutil.rmtree(self.copies / path, ignore_errors=True)
        for page in self.store.pages(self.bucket, self._below(path)):
            self.store.delete(self.bucket, [found.key for found in page])

    def everything(self, path: str) -> Iterator[Entry]:
        start = len(self._below(""))
        for page in self.store.pages(self.bucket, self._below(path)):
            yield from (Entry(found.key[start:], found.size, found.modified) for found in page)

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths if self.copies else ():
            self.local(path).unlink(missing_ok=True)
        self.store.delete(self.bucket, [self._key(path) for path in paths])

    # --- Spark -----------------------------------------------------------------------------------------------------

    def local(self, path: str) -> Path:
        if self.copies is None:
            raise ValueError(f"{self!r} was opened without a place for copies")
        place = self.copies / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def push(self, paths: Sequence[str]) -> None:
        _all(lambda path: self.store.upload(self.bucket, self._key(path), self.local(path)), paths)

    def fetch(self, paths: Sequence[str]) -> list[Path]:
        return _all(self._fetched, paths)

    def keep(self, paths: Iterable[str]) -> None:
        if self.copies is None or not self.copies.is_dir():
            return
        kept = {self.copies / path for path in paths}
        for copy in [path for path in self.copies.rglob("*") if path.is_file() and path not in kept]:
            copy.unlink(missing_ok=True)

    # --- how -------------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}".strip("/")

    def _below(self, path: str) -> str:
        """Return the prefix of the keys below a folder; empty for a whole bucket."""
        key = self._key(path)
        return f"{key}/" if key else ""

    def _content(self, path: str) -> bytes:
        return self.store.get(self.bucket, self._key(path))

    def _contents(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield files in order, fetching a few ahead: a bucket's latency is hidden, and memory stays bounded."""
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="s3") as pool:
            ahead: deque[Future[bytes]] = deque()
            for path in paths:
                ahead.append(pool.submit(self._content, path))
                if len(ahead) == PARALLEL:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _fetched(self, path: str) -> Path:
        """Return a file's local copy; it appears whole or not at all."""
        copy = self.local(path)
        if not copy.is_file():
            found = self.store.head(self.bucket, self._key(path))
            part = copy.with_name(f".{uuid.uuid4().hex}.part")
            self.store.fetch(self.bucket, self._key(path), part, etag=found.etag, size=found.size)
            part.rename(copy)
        return copy


def _reader(content: bytes) -> pa.BufferReader:
    """Return a file over a copy of the bytes in Arrow's own memory.

    Of Python's bytes a thread of Arrow's pool may be the last holder. It takes the interpreter's lock to let go of
    them, and where the interpreter is ending at that moment, the process aborts with code 134 (H34).
    """
    import pyarrow as pa

    buffer = pa.allocate_buffer(len(content))
    memoryview(buffer).cast("B")[:] = content
    return pa.BufferReader(buffer)


def _all(action: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="s3") as pool:
        return list(pool.map(action, paths))
