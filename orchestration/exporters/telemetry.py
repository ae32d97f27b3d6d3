"""Traces and metrics of a region by OTLP, if the setting `otlp_url` names a receiver of OpenTelemetry.

A group is a trace, from its ids to its publishing, with a span for each of its steps; the metrics are those of
`drainmark metrics`, as often as the file of them is written. What a receiver does not take is lost: no step waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors.environment import extra
from drainmark.orchestration.exporters.event_sender import END_SECONDS, SEND_SECONDS, EventSender
from drainmark.orchestration.exporters.spans import Span, steps_of_group
from drainmark.orchestration.inspection.metrics import EVERY_SECONDS, is_due, region_metrics

if TYPE_CHECKING:
    from drainmark.jobs.runtime.outside import Outside
    from drainmark.orchestration.exporters.otlp import Otlp
    from drainmark.orchestration.workplace.workplace import Workplace

logger = logging.getLogger(__name__)


def telemetry_of(workplace: Workplace, outside: Outside) -> Telemetry:
    """Return what sends traces and metrics of a run to the receiver that the settings name.

    Raises:
        UsageError: the extra `otel` is not installed.
    """
    with extra("otel", "otlp_url is set, and OpenTelemetry's exporter is not installed"):
        from drainmark.orchestration.exporters.otlp import Otlp
    otlp = Otlp(workplace.settings.otlp_url, workplace.settings.otlp_headers, SEND_SECONDS)
    return Telemetry(workplace=workplace, outside=outside, otlp=otlp, sender=EventSender(send=lambda send: send()))


@dataclass(slots=True, kw_only=True)
class Telemetry:
    """The traces and metrics of a region, sent while one process works on it."""

    workplace: Workplace
    outside: Outside
    otlp: Otlp
    sender: EventSender
    _open: dict[int, tuple[int, int]] = field(default_factory=dict)
    _epoch: int = 0
    _since: int = field(default_factory=time.time_ns)
    _measured: float = field(default_factory=time.monotonic)

    def follow(self, step: str, numbers: Mapping[str, Any]) -> None:
        """Send what there is to send after a step of the protocol."""
        try:
            if (handle := _HANDLERS.get(step)) is not None:
                handle(self, numbers)
            if is_due(step, self._measured + EVERY_SECONDS):
                self._measure()
            if step == "release":
                self._end()
        finally:
            self._since = time.time_ns()

    # --- traces -----------------------------------------------------------------------------------------------------

    def claimed(self, numbers: Mapping[str, Any]) -> None:
        self._epoch = numbers["epoch"]

    def begin(self, numbers: Mapping[str, Any]) -> None:
        self._open[numbers["first_id"]] = (numbers["last_id"], time.time_ns())

    def group(self, numbers: Mapping[str, Any]) -> None:
        """Send the trace of a group, and of others that its commit joined: their steps are those of the group."""
        first, last, now = numbers["first_id"], numbers["last_id"], time.time_ns()
        _, began = self._open.get(first, (last, now))
        parts = steps_of_group(numbers.get("durations") or {}, began, now)
        told = {"rows_in": numbers.get("rows_in", 0)}
        self._trace(Span(name="group", began=began, ended=now, attributes=self._ids(first, last, told), parts=parts))
        self._open = {each: known for each, known in self._open.items() if each > last}

    def failed(self, numbers: Mapping[str, Any]) -> None:
        now, error = time.time_ns(), str(numbers.get("error") or numbers.get("reason") or "")
        for first, (last, began) in sorted(self._open.items()):
            self._trace(Span(name="group", began=began, ended=now, attributes=self._ids(first, last, {}), error=error))
        self._open.clear()

    def rewind(self, numbers: Mapping[str, Any]) -> None:
        told = {"drainmark.rewind_id": numbers["rewind_id"], "drainmark.to": numbers["to"]}
        attributes = {**self._common(), **told}
        self._trace(Span(name="rewind", began=self._since, ended=time.time_ns(), attributes=attributes))

    def _trace(self, span: Span) -> None:
        self.sender.put(lambda: lambda: self.otlp.send_trace(span))

    def _common(self) -> dict[str, Any]:
        return {"drainmark.region": self.outside.store.region, "drainmark.epoch": self._epoch}

    def _ids(self, first: int, last: int, more: Mapping[str, Any]) -> dict[str, Any]:
        told = {"first_sequence_id": first, "last_sequence_id": last, **more}
        return {**self._common(), **{f"drainmark.{name}": value for name, value in told.items()}}

    # --- metrics and the end ----------------------------------------------------------------------------------------

    def _measure(self) -> None:
        self._measured = time.monotonic()
        region, checkpoint = self.outside.store.region, self.outside.store.checkpoint
        found, moment = region_metrics(self.workplace, region, checkpoint.history), time.time_ns()
        self.sender.put(lambda: lambda: self.otlp.send_metrics(region, found, moment))

    def _end(self) -> None:
        self.failed({"error": ""})
        self.sender.flush(END_SECONDS)
        if self.sender.lost:
            region, lost, why = self.outside.store.region, self.sender.lost, self.sender.why
            logger.warning("%s: %d traces and metrics were not taken by the receiver of OTLP (%s)", region, lost, why)


_HANDLERS: Mapping[str, Callable[[Telemetry, Mapping[str, Any]], None]] = {
    "claim": Telemetry.claimed,
    "begin": Telemetry.begin,
    "group": Telemetry.group,
    "failed": Telemetry.failed,
    "input": Telemetry.failed,
    "halt": Telemetry.failed,
    "rewind": Telemetry.rewind,
}
