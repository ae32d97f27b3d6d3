"""What a run uses outside the process, as one value: the adapters of `resources`, joined by the control plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainmark.jobs.operators.sources.contract import SourceAccess
    from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.protocol.records.manifest import RegionTable
    from drainmark.jobs.protocol.records.triggers import Trigger
    from drainmark.jobs.state.handlers.data_store import DataStore
    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.lookup_tables import LookupTables
    from drainmark.resources.inputs.inputs import Inputs
    from drainmark.resources.registry.lease import LeaseHolder
    from drainmark.resources.registry.registry import Registry
    from drainmark.resources.spark.session import Engine

Report = Callable[[str, Mapping[str, Any]], None]
"""Called once for each step, with its name and its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Everything outside the process that a run uses, joined by the control plane.

    Attributes:
        state_store: the store for the chunks of handlers' checkpoints; None if they go to their state's tables.
        on_halt: called once a halt is committed and its row is in the history; may take seconds, never raises.
        take_feed: moves the cursor of an autonomous source, for one reader of it, over the new files, and returns them:
            (reader, source, sequence id for which they are taken). No later call returns them again.
        register: gives a table its declared name in a catalogue of Spark; from any thread, may take long.
        small_group_bytes: the setting; see `Attempt.for_input`.
    """

    engine: Engine
    store: RegionTables
    inputs: Inputs
    access: SourceAccess
    registry: Registry
    lease: LeaseHolder
    clock: Callable[[], float]
    statement: Callable[[str], str]
    lookups: LookupTables
    small_group_bytes: int
    state_store: DataStore | None = None
    on_halt: Callable[[RegionHistory], None] = lambda history: None
    take_feed: Callable[[str, DirectorySource, int], Sequence[Trigger]] = lambda reader, source, sequence_id: ()
    register: Callable[[RegionTable], None] = lambda table: None
