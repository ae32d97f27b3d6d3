"""The Spark session of one stage: its jobs run in a pool of their own, so that no stage starves another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drainmark.jobs.runtime.outside import Outside

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from drainmark.resources.spark.session import Engine


@dataclass(slots=True)
class StageEngine:
    """An engine for one stage: `tagged` chooses the pool of the stage, and every job of a stage has a tag."""

    engine: Engine
    pool: str

    @property
    def master(self) -> str:
        return self.engine.master

    @property
    def is_local(self) -> bool:
        return self.engine.is_local

    @property
    def shares_disk(self) -> bool:
        return self.engine.shares_disk

    @property
    def is_ours(self) -> bool:
        return self.engine.is_ours

    @property
    def session(self) -> SparkSession:
        return self.engine.session

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        with self.engine.pooled(self.pool), self.engine.tagged(tag):
            yield

    def pooled(self, pool: str) -> AbstractContextManager[None]:
        return self.engine.pooled(pool)

    def cancel(self, tag: str) -> None:
        self.engine.cancel(tag)

    def require_outputs(self, folders: Sequence[Path]) -> None:
        self.engine.require_outputs(folders)

    def require_inputs(self, folders: Sequence[Path]) -> None:
        self.engine.require_inputs(folders)


def of_stage(outside: Outside, stage: str) -> Outside:
    """Return the outside with the engine of one stage."""
    return replace(outside, engine=StageEngine(outside.engine, f"drainmark {stage}"))
