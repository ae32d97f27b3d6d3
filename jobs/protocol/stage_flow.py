"""The progress of each stage of a region, and the batches in flight between them: facts of the history.

A row without stages means that all stages have done everything up to its id, and that the channels are empty. Regions
of one stage, and aligned states, have such rows. Every state and every sink is a history by id, so each stage is taken
back to N by removing everything with an id above N. A stage that is below N finds the input that it still needs in the
channels: batches up to N (inclusive); a batch that straddles N is cut. The batches that a rewind needs are in flight
now, so only the last row names batches, and `gc` deletes the channel files of older rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from drainmark.jobs.protocol.records.manifest import Manifest, StagedFile


def channels_folder(region: str) -> str:
    """Return the folder in which the files of a region's channels are staged, in the form of a table's name."""
    return f"channels/{region}"


_PART = "part-"


def part_attempt(attempt: str) -> str:
    """Return an attempt's name with a prefix that marks it as the attempt of one stage. A row names files of many such
    attempts, so files staged under one are never deleted by the attempt's name: only paths tell which are in use."""
    return f"{_PART}{attempt}"


def is_part(attempt: str) -> bool:
    """Say whether an attempt is the attempt of one stage."""
    return attempt.startswith(_PART)


class Half(StrEnum):
    """The side of a channel that a batch in flight belongs to, and to which it is restored."""

    OUTPUT = "output"  # the producer's: the consumer has not taken it
    INPUT = "input"  # the consumer's: taken, and not done


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The batch of one group in one channel, as a checkpoint row names it.

    Attributes:
        first_id, last_id: of the group (inclusive); `_sequence_id` gives the id of each row.
        files: Parquet, below the folder of the region's channels; none for no rows. If a rewind cut the batch, they
            still hold the rows above `last_id`.
        rows, bytes: of the files.
    """

    first_id: int
    last_id: int
    files: tuple[StagedFile, ...] = ()
    rows: int = 0
    bytes: int = 0
    half: Half = Half.OUTPUT

    def up_to(self, number: int) -> InFlight | None:
        """Return the batch without ids above a number; None if no id is left."""
        if self.first_id > number:
            return None
        return self if self.last_id <= number else replace(self, last_id=number)

    def to_json(self) -> dict[str, Any]:
        return {
            "first_id": self.first_id,
            "last_id": self.last_id,
            "files": [file.to_json() for file in self.files],
            "rows": self.rows,
            "bytes": self.bytes,
            "half": self.half.value,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InFlight:
        files = tuple(StagedFile.from_json(file) for file in value["files"])
        return cls(**{**value, "files": files, "half": Half(value["half"])})


Channels = Mapping[str, tuple[InFlight, ...]]
"""By name of a channel, the batches in flight in it, ordered by id."""


def channels_to_json(channels: Channels) -> dict[str, list[dict[str, Any]]]:
    return {name: [batch.to_json() for batch in batches] for name, batches in channels.items()}


def channels_from_json(value: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[InFlight, ...]]:
    return {name: tuple(InFlight.from_json(batch) for batch in batches) for name, batches in value.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLink:
    """A channel as code declares it.

    Attributes:
        stage_from, stage_to: names of the stages at its ends.
        columns: type by name of each column that it carries.
    """

    stage_from: str
    stage_to: str
    columns: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"stage_from": self.stage_from, "stage_to": self.stage_to, "columns": dict(self.columns)}


Links = Mapping[str, ChannelLink]
"""The channels of a region, by name."""


def links_to_json(links: Links) -> dict[str, dict[str, Any]]:
    return {name: link.to_json() for name, link in links.items()}


def links_from_json(value: Mapping[str, Mapping[str, Any]] | None) -> dict[str, ChannelLink]:
    return {name: ChannelLink(**link) for name, link in (value or {}).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The stages of a region after a number of rows; empty for a region of one stage.

    Attributes:
        through: by name of a stage, the id up to which (inclusive) it has done everything.
        channels: the batches in flight; channels that are empty are not named.
        operators: by name of a stage, its operators without the starts, as the last claim declared them.
        restarts: by name of a stage, how often it began a batch again by itself.
        links: all channels, as the last claim declared them.
    """

    through: Mapping[str, int] = field(default_factory=dict)
    channels: Channels = field(default_factory=dict)
    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    links: Links = field(default_factory=dict)

    @property
    def batches(self) -> tuple[InFlight, ...]:
        """Return all batches in flight."""
        return tuple(batch for batches in self.channels.values() for batch in batches)

    @property
    def bytes(self) -> int:
        return sum(batch.bytes for batch in self.batches)

    def reached(self, operator: str) -> int | None:
        """Return the id up to which an operator has done everything; None if all stages have done all committed ids.
        For a table of no operator, which several stages may write (the quarantine): the least id of all stages."""
        if not self.through or not self.channels:
            return None
        stage = next((name for name, operators in self.operators.items() if operator in operators), None)
        return self.through.get(stage, 0) if stage is not None else min(self.through.values())

    def claimed(self, stages: Mapping[str, Sequence[str]], links: Links, committed: int) -> Flow:
        """Return the facts after the claim of code with these stages and channels; none, if it has one stage.

        If nothing is in flight, all stages of the code are at the committed id. If batches in flight do not fit the
        code, the facts stay unchanged: the claiming owner checks again, and goes no further.
        """
        if any(self.misfits(stages, links)):  # batches came between check and claim: kept for code that fits
            return self
        return Flow(
            through={name: self.through.get(name, committed) if self.channels else committed for name in stages},
            channels=self.channels,
            operators={name: tuple(operators) for name, operators in stages.items()},
            restarts={name: self.restarts[name] for name in stages if name in self.restarts},
            links=links,
        )

    def committed(self, manifest: Manifest, committed: int) -> Flow:
        """Return the facts after a row with a manifest.

        Args:
            committed: the id of the newest state: this row's, if it is a state.
        """
        restarts = dict(self.restarts)
        for name, count in manifest.restarts.items():
            restarts[name] = restarts.get(name, 0) + count
        if not manifest.stages:
            if not self.through:
                return self
            return replace(self, through=dict.fromkeys(self.through, committed), channels={}, restarts=restarts)
        found = channels_from_json(manifest.channels)
        channels = {name: batches for name, batches in found.items() if batches}
        return replace(self, through={**self.through, **manifest.stages}, channels=channels, restarts=restarts)

    def skipped(self, number: int, before: int) -> Flow:
        """Return the facts after the empty state of a skipped trigger: a stage that reached `before` passes it at once.

        Args:
            before: the committed id before it.
        """
        if not self.through:
            return self
        through = {name: number if done >= before or not self.channels else done for name, done in self.through.items()}
        return replace(self, through=through)

    def rewound(self, to: int) -> Flow:
        """Return the facts after a rewind: stages below the id keep the batches that lead up to it."""
        if not self.through:
            return self
        return replace(
            self,
            through={name: min(done, to) for name, done in self.through.items()},
            channels={name: kept for name, batches in self.channels.items() if (kept := tuple(_cut(batches, to)))},
        )

    def misfits(self, stages: Mapping[str, Sequence[str]], links: Links) -> Iterator[str]:
        """Yield the reasons why code with other stages cannot take over the batches in flight; none if it can.

        Args:
            stages: operators by stage, as the code declares them.
            links: the code's channels.
        """
        if self.channels:
            yield from self._other_channels(links)
            yield from self._other_stages(stages)

    def _other_channels(self, links: Links) -> Iterator[str]:
        for name, batches in self.channels.items():
            if name not in links:
                yield f"{len(batches)} batches are in flight in {name!r}, and the code has no such channel"
            elif name in self.links and self.links[name].columns != links[name].columns:
                yield f"{len(batches)} batches are in flight in {name!r}, and the code carries other columns there"
        for name, link in links.items() if self.links else ():
            if name not in self.links and self.through.get(link.stage_from) != self.through.get(link.stage_to):
                yield f"channel {name!r} is new, and its stages have not come equally far"

    def _other_stages(self, stages: Mapping[str, Sequence[str]]) -> Iterator[str]:
        for name in stages:
            if name not in self.operators:
                yield f"stage {name!r} is new, and the input that it would read is partly processed"
        stage_of = {operator: stage for stage, operators in stages.items() for operator in operators}
        for stage, operators in self.operators.items():
            for operator in operators:
                if stage_of.get(operator, stage) != stage:
                    yield f"{operator!r} was in stage {stage!r} and is in {stage_of[operator]!r}"

    def to_json(self) -> dict[str, Any]:
        return {
            "through": dict(self.through),
            "channels": channels_to_json(self.channels),
            "operators": {name: list(operators) for name, operators in self.operators.items()},
            "restarts": dict(self.restarts),
            "links": links_to_json(self.links),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Flow:
        return cls(
            through=value["through"],
            channels=channels_from_json(value["channels"]),
            operators={name: tuple(operators) for name, operators in value["operators"].items()},
            restarts=value["restarts"],
            links=links_from_json(value.get("links")),
        )


def _cut(batches: Sequence[InFlight], to: int) -> Iterator[InFlight]:
    return (kept for batch in batches if (kept := batch.up_to(to)) is not None)
