"""Requests of OTLP that a receiver got, as values."""

from __future__ import annotations

from typing import Any

from event_receiver import EventReceiver
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def spans(receiver: EventReceiver) -> list[Any]:
    """Return all spans, in the order in which they came."""
    found = []
    for path, body in receiver.posted:
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(body)
            found += [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
    return found


def attributes(told: Any) -> dict[str, Any]:
    """Return the attributes of a span, a point or a resource."""
    values = {each.key: each.value for each in told.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def newest_metrics(receiver: EventReceiver) -> Any:
    """Return the metrics of the newest request, of its only resource."""
    body = [body for path, body in receiver.posted if path == "/v1/metrics"][-1]
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert attributes(resource.resource)["service.name"] == "drainmark"
    return resource.scope_metrics[0].metrics


def numbers(receiver: EventReceiver) -> dict[str, Any]:
    """Return the values of the newest metrics as `drainmark metrics --json` has them."""
    found: dict[str, Any] = {}
    for metric in newest_metrics(receiver):
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            labels = attributes(point)
            found["region"] = labels.pop("region")
            value = getattr(point, point.WhichOneof("value"))
            if metric.name == "drainmark_state":
                found |= {metric.name: labels["state"]} if value else {}
            elif labels:
                found.setdefault(metric.name, {})[next(iter(labels.values()))] = value
            else:
                found[metric.name] = value
    return found
