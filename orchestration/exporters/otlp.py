"""Spans and metrics as OpenTelemetry's exporters send them, by OTLP over HTTP; needs the extra `otel`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from drainmark.orchestration.exporters.event_sender import Busy, direct_session, failure_of
from drainmark.orchestration.inspection.metrics import PREFIX
from drainmark.orchestration.workplace.workplace import drainmark_version

if TYPE_CHECKING:
    from drainmark.orchestration.exporters.spans import Span
    from drainmark.orchestration.inspection.metrics import Metric


class _Ended(SpanProcessor):
    """The spans that have ended and are not sent."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def take(self) -> list[ReadableSpan]:
        taken, self.spans = self.spans, []
        return taken


class Otlp:
    """The exporters to one receiver; all calls come from one thread.

    Args:
        url: the receiver; traces go to `v1/traces` below it, metrics to `v1/metrics`.
        seconds: how long one request may take.
    """

    def __init__(self, url: str, headers: Mapping[str, str], seconds: float) -> None:
        url, version = url.rstrip("/"), drainmark_version()
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # a run says once what was not taken
        self._resource = Resource({"service.name": "drainmark", "service.version": version})
        self._scope = InstrumentationScope("drainmark", version)
        told: dict[str, Any] = {"headers": headers, "timeout": seconds}
        self._spans = OTLPSpanExporter(endpoint=f"{url}/v1/traces", session=direct_session(self._judge), **told)
        self._metrics = OTLPMetricExporter(endpoint=f"{url}/v1/metrics", session=direct_session(self._judge), **told)
        self._failure: Exception | None = None
        self._ended = _Ended()
        provider = TracerProvider(sampler=ALWAYS_ON, resource=self._resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("drainmark", version)

    def send_trace(self, span: Span) -> None:
        """Send a span with its parts as a trace.

        Raises:
            Exception: the receiver did not take it; see `EventSender.send`.
        """
        self._make(span, None)
        self._require(self._spans.export(self._ended.take()) is SpanExportResult.SUCCESS)

    def send_metrics(self, region: str, found: Sequence[Metric], moment: int) -> None:
        """Send metrics of a region, as they were at a moment, in nanoseconds since 1970.

        Raises:
            Exception: the receiver did not take them; see `EventSender.send`.
        """
        told = [each for metric in found for each in _metrics_of(region, metric, moment)]
        scope = metrics.ScopeMetrics(self._scope, told, schema_url="")
        data = metrics.MetricsData([metrics.ResourceMetrics(self._resource, [scope], schema_url="")])
        self._require(self._metrics.export(data) is metrics.MetricExportResult.SUCCESS)

    def _judge(self, response: Any) -> None:
        """Raise what an answer says, unless it asks for patience: the exporter has some, within its seconds."""
        self._failure = failure_of(response)
        if self._failure is not None and not isinstance(self._failure, Busy):
            raise self._failure

    def _require(self, is_taken: bool) -> None:
        failure, self._failure = self._failure, None
        if not is_taken:
            raise failure or ConnectionError("the receiver gave no answer")

    def _make(self, span: Span, parent: Any) -> None:
        made = self._tracer.start_span(
            span.name, context=parent, start_time=span.began, attributes=dict(span.attributes)
        )
        for part in span.parts:
            self._make(part, trace.set_span_in_context(made))
        if span.error:
            made.set_status(trace.StatusCode.ERROR, span.error)
        made.end(end_time=span.ended)


def _metrics_of(region: str, metric: Metric, moment: int) -> list[metrics.Metric]:
    """Return a metric under the name that it has in Prometheus' format; a summary is two, its sum and its count."""
    by_name: dict[str, list[metrics.NumberDataPoint]] = {}
    for suffix, labels, value in metric.samples:
        if value is not None:
            point = metrics.NumberDataPoint(
                attributes={"region": region, **labels}, start_time_unix_nano=0, time_unix_nano=moment, value=value
            )
            by_name.setdefault(f"{PREFIX}{metric.name}{suffix}", []).append(point)
    return [
        metrics.Metric(name, metric.help, unit="", data=_data(metric.kind, points)) for name, points in by_name.items()
    ]


def _data(kind: str, points: Sequence[metrics.NumberDataPoint]) -> metrics.Gauge | metrics.Sum:
    if kind == "gauge":
        return metrics.Gauge(points)
    return metrics.Sum(points, metrics.AggregationTemporality.CUMULATIVE, is_monotonic=True)
