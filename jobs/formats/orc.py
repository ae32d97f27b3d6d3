"""ORC: a file is judged by its footer, and read by Arrow."""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.bad_records import CAPS, Parsed, Refused, require_fault_of_file
from drainmark.jobs.formats.column_fit import (
    ColumnReader,
    Columns,
    Found,
    require_columns,
    short,
    spark_columns,
)
from drainmark.jobs.formats.format import Expected, Format, Rows
from drainmark.jobs.formats.lines.content import LocalFile, Readable, SeekableData

if TYPE_CHECKING:
    import pyarrow as pa

_CATALYST = b"spark.sql.catalyst.type"
_NTZ = b"timestamp_ntz"
_BATCH_ROWS, _BATCH_BYTES = 65_536, 8 * 2**20
_WIDTH = 8
"""Bytes of a value, about; those of texts are counted besides."""

_TRIAL = """
import signal, socket, sys
from pyarrow import dataset
channel = socket.socket(fileno=int(sys.argv[1]))
for timer in (signal.SIGPROF, signal.SIGALRM):
    signal.signal(timer, signal.SIG_DFL)
while asked := socket.recv_fds(channel, 64, 1):
    if not asked[0]:
        break
    rows, busy, waiting = asked[0].split()
    signal.setitimer(signal.ITIMER_PROF, float(busy))
    signal.setitimer(signal.ITIMER_REAL, float(waiting))
    try:
        with open(asked[1][0], "rb") as file:
            scan = dataset.OrcFileFormat().make_fragment(file)
            for batch in scan.to_batches(batch_size=int(rows), batch_readahead=1, use_threads=False):
                pass
    except Exception:
        pass  # who asks finds the same error
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    channel.sendall(b"!")
"""
"""What a process of its own runs: it reads each file of which it is sent the descriptor, and then says so.

It is sent with it the number of rows to read at once, the seconds of a processor that the file may take, and those in
all. Timers end the process then, even within the library.
"""

_SECONDS: float = 60
_BYTES_A_SECOND = 4 * 2**20
_WAIT_SECONDS = 600
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}

_FOOTER, _STATISTICS, _CALENDAR = 2, 7, 11
_VALUES, _TEXTS, _BYTES = 1, 4, 8
"""Numbers of fields in ORC's footer and in the statistics of a column."""

_JULIAN = 1
_NO_ZONES = "/GMT does not exist"
"""Part of the library's error where no file tells it of time zones, not even of the one in which it reads all times."""


class Orc(Format):
    """Files of rows in named and typed columns."""

    name = "orc"
    names_columns = True

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        import pyarrow as pa
        from pyarrow import orc

        try:
            with _watched(file) as watched:
                schema = orc.ORCFile(watched).schema
                return spark_columns(_found(schema, lambda kind: pa.timestamp("us", "UTC")))
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return None

    def rows_of(self, data: Readable, expected: Expected, start: int, end: int) -> Iterator[Parsed]:
        import pyarrow as pa

        if not isinstance(data, LocalFile):
            raise TypeError("ORC files are read from a disk")
        where = "is no ORC file that can be read"
        try:
            with io.BufferedReader(SeekableData(data)) as opened, _watched(opened) as watched:
                self._judge(watched, expected)
                where = "has stripes that cannot be read"
                yield from _rows(data, watched, expected.columns or ())
        except MemoryError:
            raise  # no fault of the file
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            if _NO_ZONES in str(error):
                raise RuntimeError(str(error)) from error
            raise Refused(f"{where}: {short(error)}") from None

    def _judge(self, watched: _Watched, expected: Expected) -> None:
        """Judge a file by its footer; no stripe is read yet."""
        from pyarrow import orc

        file = orc.ORCFile(watched)
        _Tail.of(file)
        require_columns(_found(file.schema), expected.columns or (), others=not expected.refuses_others)

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        import pyarrow as pa
        from pyarrow import orc

        buffer = io.BytesIO()
        orc.write_table(pa.Table.from_pylist(list(rows), schema=schema()), buffer)
        return buffer.getvalue()


class _Watched(io.RawIOBase):
    """A file that keeps the error of its disk or its store."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.failed: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._file.read(len(buffer))
        except Exception as error:
            self.failed = error
            raise
        buffer[: len(found)] = found
        return len(found)


@contextmanager
def _watched(file: BinaryIO) -> Iterator[_Watched]:
    """Give a file to ORC's library; raise the error of its disk or store, of which the library keeps only the text."""
    watched = _Watched(file)
    try:
        yield watched
    except Exception as error:
        if watched.failed is None:
            raise
        raise watched.failed from error


class _TrialProcess:
    """The process of this one that reads ORC files first: damaged numbers end the process that reads them.

    It is started for the first file, serves all further ones, and is replaced when it has ended. It ends with this
    process, however that ends: its channel is closed then.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def require_harmless(self, data: LocalFile, tail: _Tail) -> None:
        """Let the process read a file to its end.

        Raises:
            Refused: the file ends the process, or takes too much time.
            MemoryError, TimeoutError: the process was killed, or the disk does not answer.
        """
        seconds = _SECONDS + (data.size + tail.size) // _BYTES_A_SECOND
        asked = f"{tail.rows_at_once} {seconds} {_WAIT_SECONDS + 10 * seconds}"
        with self._lock:
            _, channel = self._started()
            try:
                socket.send_fds(channel, [asked.encode()], [data.descriptor])
                is_read = channel.recv(1)
            except ConnectionError:
                is_read = b""
            ended = 0 if is_read else -self._end()
        if ended in _CRASHES:
            raise Refused(f"has stripes that cannot be read: ORC's library ends with {signal.Signals(ended).name}")
        if ended == signal.SIGPROF:
            raise Refused(f"has stripes that cannot be read: ORC's library needs more than {seconds} seconds")
        if ended == signal.SIGALRM:
            raise TimeoutError(errno.ETIMEDOUT, f"an ORC file was not read in {_WAIT_SECONDS} seconds")
        if not is_read:
            raise MemoryError(f"the process that reads ORC files was ended ({-ended})")

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._running is not None and self._running[0].poll() is not None:
            self._end()
        if self._running is None:
            channel, other = socket.socketpair()
            with other:
                process = subprocess.Popen(
                    [sys.executable, "-c", _TRIAL, str(other.fileno())],
                    pass_fds=[other.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C at a run is no end of this process: it would look like damage
                )
            self._running = process, channel
        return self._running

    def _end(self) -> int:
        """End the process if it runs; return its code."""
        if self._running is None:
            return 0
        (process, channel), self._running = self._running, None
        channel.close()
        return process.wait()

    def stop(self) -> None:
        """End the process with this one, without the file that it reads."""
        if self._running is not None:
            self._running[0].kill()
            self._end()

    def forget(self) -> None:
        """Leave the process to that from which this one was forked: two would read each other's answers."""
        if self._running is not None:
            process, channel = self._running
            process.returncode = 0  # it is no child of this process
            channel.close()
        self._lock, self._running = Lock(), None


def _microseconds(kind: Any) -> pa.DataType:
    """Return the type of times as Spark has them: ORC's library gives nanoseconds, its format has no unit."""
    import pyarrow as pa

    return pa.timestamp("us", kind.tz)


def _rows(data: LocalFile, watched: _Watched, columns: Columns) -> Iterator[Parsed]:
    import pyarrow as pa
    from pyarrow import dataset, orc

    file = orc.ORCFile(watched)
    tail, read = _Tail.of(file), 0
    reader = ColumnReader.of(_found(file.schema), columns, is_julian=tail.is_julian)
    _process.require_harmless(data, tail)
    exact = _found(file.schema, lambda kind: kind)
    # Only the scanner of datasets reads a part of a stripe, which may have gigabytes.
    batches = (
        dataset.OrcFileFormat()
        .make_fragment(watched)
        .to_batches(columns=reader.names, batch_size=tail.rows_at_once, batch_readahead=1, use_threads=False)
    )
    for batch in batches:
        if not batch.num_rows:
            continue
        read += batch.num_rows
        typed = [batch.column(name).view(exact.field(name).type) for name in reader.names]
        yield reader.read(pa.RecordBatch.from_arrays(typed, names=reader.names))
    if read != file.nrows:
        raise Refused(f"has {file.nrows} rows by its footer, and {read} of them in its stripes")


def _found(schema: pa.Schema, times: Callable[[Any], pa.DataType] = _microseconds) -> pa.Schema:
    """Return the types of a file's columns, with numbers that Spark marked as times without a zone as such.

    Args:
        times: gives the type of times for the library's type.
    """
    import pyarrow as pa

    return pa.schema([_found_field(field, times) for field in schema])


def _found_field(field: pa.Field, times: Callable[[Any], pa.DataType]) -> pa.Field:
    import pyarrow as pa

    kind = field.type
    if (field.metadata or {}).get(_CATALYST) == _NTZ and pa.types.is_int64(kind):
        kind = pa.timestamp("us")
    elif pa.types.is_timestamp(kind):
        kind = times(kind)
    elif pa.types.is_struct(kind):
        kind = pa.struct([_found_field(part, times) for part in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_found_field(kind.key_field, times), _found_field(kind.item_field, times))
    elif pa.types.is_list(kind):
        kind = pa.list_(_found_field(kind.value_field, times))
    return pa.field(field.name, kind, field.nullable)


# --- the footer ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tail:
    """What the library does not tell of a file's footer.

    Attributes:
        is_julian: days before 1582 are counted by the Julian calendar.
        size: bytes of the values in memory, about, if the footer is right.
        rows_at_once: number of rows that take a bounded memory.
    """

    is_julian: bool
    size: int
    rows_at_once: int

    @classmethod
    def of(cls, file: Any) -> _Tail:
        """Return the facts of a file.

        Raises:
            Refused: the footer is damaged, or the values take more memory than the caps.
        """
        try:
            footer = _fields(_fields(file.reader.serialized_file_tail())[_FOOTER][-1])
            size = sum(_size_of(_fields(column)) for column in footer.get(_STATISTICS, ()))
        except (IndexError, KeyError, TypeError) as error:
            raise Refused("is no ORC file that can be read: its footer is damaged") from error
        is_excessive = size > CAPS.ratio_free_bytes and size > CAPS.ratio * file.content_length
        if size > CAPS.decompressed_bytes or is_excessive:
            raise Refused(f"holds {size} bytes when decompressed, more than {CAPS.ratio} times its bytes or the cap")
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * file.nrows // max(1, size)))
        return cls(footer.get(_CALENDAR, [0])[-1] == _JULIAN, size, rows)


def _size_of(column: Mapping[int, Sequence[Any]]) -> int:
    """Return the bytes of the values of a column, about, by its statistics."""
    size = int(column.get(_VALUES, [0])[-1]) * _WIDTH
    for kind, place in ((_TEXTS, 3), (_BYTES, 1)):
        for texts in column.get(kind, ()):
            size += sum(_signed(number) for number in _fields(texts).get(place, ()))
    return size


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Return the values of each field of a message in the encoding of protocol buffers."""
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        field, kind = divmod(varint(), 8)
        if kind == 0:
            value: Any = varint()
        else:
            length = {1: 8, 5: 4}.get(kind) or varint()
            value = message[at : at + length]
            at += length
        found.setdefault(field, []).append(value)
    return found


_process = _TrialProcess()
atexit.register(_process.stop)
os.register_at_fork(after_in_child=_process.forget)
FORMAT = Orc()
