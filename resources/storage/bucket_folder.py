"""Tables in a bucket: files by the common client, commits by `deltalake` with put-if-absent; folders of settings.

This process writes small files by one conditional put and reads files as a whole; tasks of Spark read and write the
bucket themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError, ObjectChanged, ObjectMissing
from drainmark.jobs.protocol.records.addresses import S3, address_of, is_object
from drainmark.jobs.tasks.parquet_files import as_written, require_as_written
from drainmark.jobs.tasks.places import BucketPlace
from drainmark.resources.storage.folder import FileEntry, Folder, LocalFolder, below, nothing
from drainmark.resources.storage.object_errors import failure
from drainmark.resources.storage.object_store import ObjectStore, object_store
from drainmark.resources.storage.s3_connection import PARALLEL
from drainmark.resources.storage.store_probe import Habit, habits, require_one_winner

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.settings import Settings


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


_STAGED = "_staged"  # of a table: `gc` deletes what a process that was killed left there


class BucketFolder(Folder):
    """A prefix of a bucket.

    Args:
        store: the client.
        bucket: its address, such as `s3://NAME`.
        prefix: of the keys, without a slash at its ends; may be empty.
    """

    def __init__(self, store: ObjectStore, bucket: str, prefix: str) -> None:
        self.store = store
        self.bucket = bucket
        self.prefix = prefix
        self._objects = BucketPrefix(store, bucket, prefix)
        self.uri = f"{bucket}/{prefix}".rstrip("/")

    def __truediv__(self, path: str) -> BucketFolder:
        return below(BucketFolder(self.store, self.bucket, self._objects.key(path)), self, path)

    @property
    def place(self) -> BucketPlace:
        return BucketPlace(self.store.bucket(self.bucket), self.prefix)

    def storage_options(self) -> dict[str, str]:
        shared = dict(self.store.bucket(self.bucket).patience.options())
        if not self.bucket.startswith(S3):
            return shared  # `deltalake` finds the credentials of the environment, as our client does
        connection = self.store.connection
        access_key, secret_key, token = connection.credentials()
        address = connection.address
        return {
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
            **({"aws_session_token": token} if token else {}),
            "aws_region": connection.region_name,
            "aws_endpoint_url": address,
            "aws_endpoint_url_s3": address,
            "aws_allow_http": str(address.startswith("http://")).lower(),
            "aws_conditional_put": "etag",  # else `deltalake` asks for a table of locks
            "aws_s3_allow_unsafe_rename": "false",  # set explicitly, since the environment could set it otherwise
            "aws_skip_signature": "false",
            **shared,
        }

    def failure(self, doing: str, error: BaseException) -> DrainmarkError:
        remedy = "look at tables_url, the credentials and the bucket's policy; for S3, at s3_region and s3_profile"
        return failure(f"{doing} {self.uri}", error, self.store.connection.redacted, remedy)

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, OSError) or "object store" in str(error) or "S3 error" in str(error)

    def require_put_if_absent(self) -> None:
        """Let writers race, once a process and bucket: tables in a bucket show that an earlier process did so.

        Raises:
            StoreRefused: several of them succeed.
        """
        if self.bucket not in self.store.fenced:
            require_one_winner(self.store, self.bucket, self._objects.below(_STAGED))
            self.store.fenced.add(self.bucket)

    def habits(self) -> list[Habit]:
        """Return what the store does otherwise than S3, tried on objects below this folder."""
        return habits(self.store, self.bucket, self._objects.below(_STAGED))

    # --- files -----------------------------------------------------------------------------------------------------

    def write(self, path: str, data: pa.Buffer) -> str:
        try:
            return self.store.put(self.bucket, self._objects.key(path), memoryview(data).tobytes(), if_absent=True)
        except ObjectChanged as error:  # also if our own put lost its reply: the caller then uses a new name
            raise FileExistsError(path) from error

    def size(self, path: str) -> int:
        return self.stamp(path)[0]

    def stamp(self, path: str) -> tuple[int, str]:
        """Return the object's size in bytes and its etag."""
        try:
            found = self.store.head(self.bucket, self._objects.key(path))
        except ObjectMissing as error:
            raise FileNotFoundError(path) from error
        return found.size, found.etag

    def source(self, path: str) -> Any:
        return _reader(self._objects.content(path))

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

        def rows(path: str, content: bytes) -> pa.Table:
            try:
                part = form.make_fragment(_reader(content))
                return part.to_table(schema=schema, columns=wanted, filter=where)
            except (pa.ArrowInvalid, OSError):
                require_as_written(self / path, _reader(content))
                raise

        return pa.concat_tables(map(rows, paths, self._objects.contents(paths)))

    def read_each(self, paths: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        import pyarrow.parquet as pq

        for path, content in zip(paths, self._objects.contents(paths), strict=True):
            with as_written(self / path), pq.ParquetFile(_reader(content)) as file:
                yield file.read(columns=list(columns) if columns is not None else None)

    # --- listing and deleting --------------------------------------------------------------------------------------

    def names(self, path: str = "") -> Iterator[str]:
        return self.store.names(self.bucket, self._objects.below(path))

    def modified(self, path: str) -> Mapping[str, float]:
        below = self._objects.below(path)
        pages = self.store.pages(self.bucket, below, recursive=False)
        found = (each for page in pages for each in page if each.key != below)
        return {each.key.removeprefix(below): each.modified for each in found}

    def delete(self, path: str) -> None:
        for page in self.store.pages(self.bucket, self._objects.below(path)):
            self.store.delete(self.bucket, [found.key for found in page])

    def everything(self, path: str) -> Iterator[FileEntry]:
        start = len(self._objects.below(""))
        for page in self.store.pages(self.bucket, self._objects.below(path)):
            yield from (FileEntry(found.key[start:], found.size, found.modified) for found in page)

    def remove(self, paths: Sequence[str]) -> None:
        self.store.delete(self.bucket, [self._objects.key(path) for path in paths])


def _reader(content: bytes) -> pa.BufferReader:
    """Return a file over a copy of the bytes in Arrow's own memory.

    A thread of Arrow's pool may be the last holder of Python's bytes. It takes the interpreter's lock to release them;
    if the interpreter ends at that moment, the process aborts with code 134.
    """
    import pyarrow as pa

    buffer = pa.allocate_buffer(len(content))
    memoryview(buffer).cast("B")[:] = content
    return pa.BufferReader(buffer)


def tables_folder(settings: Settings) -> Folder:
    """Return the folder that holds `checkpoints/`, `state/` and `lake/`: the setting `tables_url`, else home."""
    return folder_of(settings.tables_url, settings) if settings.tables_url else LocalFolder(settings.home)


def folder_of(url: str, settings: Settings) -> Folder:
    """Return the folder of an address in a bucket, or of a path relative to the project's root.

    Raises:
        UsageError: it is no address of a bucket.
    """
    if not is_object(url):
        return LocalFolder(settings.project_root / url)
    bucket, prefix = address_of(url)
    return BucketFolder(object_store(settings), bucket, prefix.strip("/"))
