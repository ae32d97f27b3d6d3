"""A region of slices, of a modelled topic or of the files of periods, that is fed without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from by_hand import HandFed
from harness import settle
from unit.runtime.test_kafka_losses import Model

from drainmark.jobs.operators.sources.files.directory_source import LIST, files_of
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.scan.folder import path_of
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.doctor.registry_repair import repair
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.settings import Settings

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan

_APPLICATION = """
import drainmark as dm


@dm.consistent({trigger}, rewind_horizon=100)
@dm.source({source})
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("kept"))
"""
_TOPIC = ('trigger="operator-driven"', 'dm.KafkaSource("t", "h:1", format="json", schema="n bigint", max_messages=10)')
_PERIODS = (
    'trigger="periodic", period=0',
    'dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="v string", settle=0)',
)


@dataclass
class Sliced(HandFed):
    """A region over a topic, whose record n has the value `n`, or over the periods of a folder.

    Attributes:
        log: of the topic's one partition; `first` is the first offset that retention has left.
    """

    plan: RegionPlan = field(kw_only=True)
    log: Any = field(kw_only=True, default=None)

    def values_of(self, trigger: Trigger) -> Sequence[str]:
        piece = slice_of(trigger.identity, "rows")
        if piece is None or "lost" in piece.facts:
            return []
        if LIST in piece.facts:
            files = files_of(piece, self.workplace.access(self.region))
            return [line for file in files for line in Path(path_of(file.uri)).read_text().splitlines()]
        first = piece.start["offsets"]["0"] if piece.start else self.log.first
        return [str(number) for number in range(first, piece.end["offsets"]["0"])]

    def scan(self, tick: Tick = Tick.NOW) -> list[str]:
        """Cut what is new into slices; return their names."""
        return [trigger.uri for trigger in scan_region(self.workplace, self.plan, tick=tick).new]

    def came(self, records: int = 0, **files: str) -> None:
        """Let records and files come, each set as one slice, and process all that is pending."""
        for name, text in files.items():
            (self.inbox / f"{name}.csv").write_text(text)
        if files:
            settle(self.inbox)
        if records:
            self.log.append(records)
        self.scan()
        self.drain()

    def reset(self, to: int, *, accept_loss: bool = False) -> None:
        interventions.reset(
            self.workplace, plan_reset(self.workplace, self.region, RewindTarget(to=to)), accept_loss=accept_loss
        )

    def repaired(self) -> dict[str, Any]:
        """Rebuild the registry after it was lost; return the counts of triggers."""
        for file in self.workplace.home.glob("registry.db*"):
            file.unlink()
        self.workplace.registry.close()
        self.workplace._registry = None
        (found,) = repair(self.workplace)
        return {status: count for status, count in found["triggers"].items() if count}

    def known(self) -> list[tuple[int, str, str, int | None]]:
        """Return the slices that the registry has, in their order."""
        triggers = self.workplace.registry.triggers
        every = (each for uri in triggers.known(self.region) for each in triggers.by_uri(self.region, uri))
        return sorted((each.order_index, each.uri, each.status.value, each.sequence_id) for each in every)

    def only_values(self) -> list[str]:
        return [value for _, value in self.values()]


def sliced(folder: Path, monkeypatch: pytest.MonkeyPatch, records: int = 0) -> Sliced:
    """Return a region over a topic with some records; without any, one over the periods of the folder `inbox`."""
    model = Model(records)
    monkeypatch.setattr(RegionAccess, "kafka", lambda *_, **__: model)
    monkeypatch.chdir(folder)
    trigger, source = _TOPIC if records else _PERIODS
    file = folder / "app.py"
    file.write_text(_APPLICATION.format(trigger=trigger, source=source))
    (folder / "drainmark.toml").write_text('applications = ["app.py"]\nhome = "home"\n')
    (folder / "inbox").mkdir()
    place = Workplace(Settings(home=folder / "home", project_root=folder, applications=("app.py",)))
    opened = open_application(str(file))
    plan = opened.region("app/rows")
    remember(place, opened, plan)
    return Sliced(place, folder / "inbox", region=plan.name, plan=plan, log=model.logs[0])
