"""Who does a piece of work: this process, or Spark's tasks. The work itself is written once, as a `Task`.

A task is a value that is sent to Spark's workers unchanged: it holds no session and no credentials. Its work on a share
of the input is a sequence of facts. Both executors give the same facts in the same order, and the same errors.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.frames.arrow import arrow_of
from drainmark.jobs.frames.names import in_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Share = TypeVar("Share")
_Share_contra = TypeVar("_Share_contra", contravariant=True)
Each = TypeVar("Each")
Part = TypeVar("Part", bound="Sized")

Facts = Mapping[str, Any]
"""A finding of a task, of values that JSON has. Spark's tasks send it as JSON: tuples then come as lists."""

_TASK_BYTES = 32 * 1024 * 1024
_FACTS, _FAILED = "facts", "failed"


class Task(Protocol[_Share_contra]):
    """Work on the shares of an input: a frozen dataclass that can be pickled."""

    def work(self, share: _Share_contra) -> Iterator[Facts]:
        """Do the work on one share, and yield the facts that it finds.

        Raises:
            OSError, DrainmarkError: a disk or a store fails, or the share cannot be done; the executor raises it again.
        """


class Sized(Protocol):
    """An input of a task, with its size in bytes."""

    @property
    def size(self) -> int: ...


class Executor(ABC):
    """Does tasks; see `Here` and `OnSpark`.

    Attributes:
        is_remote: it sends shares and facts, so these are kept short; and several of its tasks share a large input.
    """

    is_remote: ClassVar[bool]

    @abstractmethod
    def shares_of(self, inputs: Sequence[Part]) -> list[tuple[Part, ...]]:
        """Return inputs in shares, in their order; none for no inputs."""

    @abstractmethod
    def run(self, task: Task[Share], shares: Sequence[Share]) -> list[Facts]:
        """Return the facts of all shares, in the order of the shares.

        Raises:
            OSError, StoreUnavailable, DrainmarkError: the first error of a share, see `reached`.
        """

    @abstractmethod
    def run_over(self, rows: DataFrame, task: Task[Iterator[pa.RecordBatch]]) -> list[Facts]:
        """Compute a frame, and return the facts of a task whose shares are its partitions, in their order.

        Raises:
            OSError, StoreUnavailable, DrainmarkError: as `run`.
        """


class Here(Executor):
    """This process, one share after the other."""

    is_remote = False

    def shares_of(self, inputs: Sequence[Part]) -> list[tuple[Part, ...]]:
        return [tuple(inputs)] if inputs else []

    def run(self, task: Task[Share], shares: Sequence[Share]) -> list[Facts]:
        return _done_here(facts for share in shares for facts in task.work(share))

    def run_over(self, rows: DataFrame, task: Task[Iterator[pa.RecordBatch]]) -> list[Facts]:
        return _done_here(task.work(iter(arrow_of(rows).to_batches())))


@dataclass(frozen=True, slots=True)
class OnSpark(Executor):
    """Spark's tasks, one for each share.

    What a task writes has names that no other attempt has, and Spark gives the facts of one attempt of each task: so
    nothing of repeated and speculative attempts is in the result.
    """

    session: SparkSession
    is_remote: ClassVar[bool] = True

    def shares_of(self, inputs: Sequence[Part]) -> list[tuple[Part, ...]]:
        """Return neighbours together, about equal bytes for each task; at least a task for each core here."""
        sizes = [each.size for each in inputs]
        return about_equal(inputs, sizes, min(len(inputs), max(os.cpu_count() or 2, -(-sum(sizes) // _TASK_BYTES))))

    def run(self, task: Task[Share], shares: Sequence[Share]) -> list[Facts]:
        return _told(self._of_shares(_Told(task), shares, f"{_FACTS} string")) if shares else []

    def run_over(self, rows: DataFrame, task: Task[Iterator[pa.RecordBatch]]) -> list[Facts]:
        return _told(in_tasks(rows, _Told(task), f"{_FACTS} string"))

    def frame(
        self, shares: Sequence[Share], rows: Callable[[Share], Iterator[pa.RecordBatch]], schema: StructType
    ) -> DataFrame:
        """Return the rows of all shares as a frame; one task reads each share, whenever the frame is computed."""
        return self._of_shares(rows, shares, schema)

    def _of_shares(
        self, work: Callable[[Share], Iterator[pa.RecordBatch]], shares: Sequence[Share], made: str | StructType
    ) -> DataFrame:
        numbers = self.session.range(0, len(shares), 1, len(shares))
        return numbers.mapInArrow(_Numbered(work, tuple(shares)), made)


def about_equal(inputs: Sequence[Each], sizes: Sequence[int], count: int) -> list[tuple[Each, ...]]:
    """Return neighbours together, in `count` shares of about equal sizes, or in fewer."""
    shares: list[list[Each]] = [[] for _ in range(count)]
    total, passed = max(1, sum(sizes)), 0
    for each, size in zip(inputs, sizes, strict=True):
        shares[min(count - 1, passed * count // total)].append(each)
        passed += size
    return [tuple(share) for share in shares if share]


def reached(error: OSError) -> OSError | StoreUnavailable:
    """Return the error for a failure of a disk, or of a store."""
    if "://" not in str(error.filename):
        return error
    remedy = "look at the store, and at its credentials; Spark's workers take them from their own environment"
    return StoreUnavailable(f"{error.filename} is not reached: {error.strerror or error}", remedy=remedy)


# --- the way of the facts from Spark's tasks ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Numbered(Generic[Share]):
    """The work of Spark's tasks on numbered shares; a row of the input is the number of a share."""

    work: Callable[[Share], Iterator[pa.RecordBatch]]
    shares: tuple[Share, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            yield from self.work(self.shares[number])


@dataclass(frozen=True, slots=True)
class _Told(Generic[Share]):
    """The work of a task, with each of its facts, and its failure, as a row with a JSON text."""

    task: Task[Share]

    def __call__(self, share: Share) -> Iterator[pa.RecordBatch]:
        try:
            for facts in self.task.work(share):
                yield _row_of(facts)
        except Exception as error:
            failed = _packed(error)
            if failed is None:
                raise
            yield _row_of({_FAILED: failed})


def _row_of(facts: Facts) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({_FACTS: [json.dumps(facts)]})


def _told(rows: DataFrame) -> list[Facts]:
    """Return the facts that tasks told; raise the first failure."""
    found: list[Facts] = [json.loads(text) for (text,) in rows.collect()]
    for facts in found:
        if _FAILED in facts:
            raise _unpacked(facts[_FAILED])
    return found


def _done_here(facts: Iterator[Facts]) -> list[Facts]:
    try:
        return [*facts]
    except OSError as error:
        failure = reached(error)
        if failure is error:
            raise
        raise failure from error


def _packed(error: Exception) -> str | None:
    """Return an error as a text; None for one that is not Drainmark's own, nor of a disk or a store."""
    if isinstance(error, OSError):
        error = OSError(error.errno, error.strerror, error.filename) if error.errno else OSError(str(error))
    elif not type(error).__module__.startswith("drainmark."):
        return None
    text = base64.b64encode(pickle.dumps(error)).decode()
    _unpacked(text)
    return text


def _unpacked(text: str) -> Exception:
    error: Exception = pickle.loads(base64.b64decode(text))  # noqa: S301 - of our own tasks, which Spark unpickles, too
    return reached(error) if isinstance(error, OSError) else error
