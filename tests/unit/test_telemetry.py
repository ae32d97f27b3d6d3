"""Traces and metrics by OTLP: a receiver gets the steps of groups, and the numbers of `drainmark metrics`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import HandFed
from event_receiver import EventReceiver, receiver
from otlp_requests import attributes, newest_metrics, numbers, spans
from waiting import eventually

from drainmark.jobs.errors import UsageError
from drainmark.jobs.protocol.transitions import State
from drainmark.orchestration.exporters import telemetry
from drainmark.orchestration.inspection.metrics import as_json, region_metrics
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

__all__ = ["receiver"]

DURATIONS = {"process": 0.25, "drain": 0.125, "checkpoint": 0.5, "publish": 0.0625}


@pytest.fixture
def fed(tmp_path: Path, receiver: EventReceiver) -> Iterator[HandFed]:
    """Yield a region of three files, whose home names the receiver."""
    told: dict[str, Any] = {"otlp_url": receiver.url, "otlp_headers": {"Authorization": "Bearer s3cret"}}
    fed = HandFed(Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, **told)), tmp_path / "inbox")
    for number in (1, 2, 3):
        fed.write(f"{number}.txt", ["a", "b"])
    fed.add("1.txt", "2.txt", "3.txt")
    yield fed
    fed.workplace.registry.close()


def process(fed: HandFed, owner: Any, first: int, last: int) -> None:
    owner.report("begin", {"first_id": first, "last_id": last})
    fed.process(last - first + 1)
    owner.report(
        "group", {"first_id": first, "last_id": last, "rows_in": 2 * (last - first + 1), "durations": DURATIONS}
    )


def test_a_group_is_a_trace_of_its_steps(fed: HandFed, receiver: EventReceiver) -> None:
    with fed.owning() as owner:
        process(fed, owner, 1, 2)
        process(fed, owner, 3, 3)
    groups = [span for span in spans(receiver) if not span.parent_span_id]
    assert [(span.name, attributes(span)) for span in groups] == [
        (
            "group",
            {
                "drainmark.region": "by_hand/files", "drainmark.epoch": 1, "drainmark.rows_in": rows,
                "drainmark.first_sequence_id": first, "drainmark.last_sequence_id": last,
            },
        )
        for first, last, rows in ((1, 2, 4), (3, 3, 2))
    ]  # fmt: skip
    assert len({span.trace_id for span in groups}) == 2
    for group in groups:
        parts = [span for span in spans(receiver) if span.parent_span_id == group.span_id]
        assert {span.trace_id for span in parts} == {group.trace_id}
        lengths = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in parts}
        assert lengths == pytest.approx(DURATIONS)
        times = {span.name: (span.start_time_unix_nano, span.end_time_unix_nano) for span in parts}
        assert times["process"][0] == group.start_time_unix_nano
        assert times["process"][1] == times["drain"][0]
        assert times["checkpoint"][1] == times["publish"][0]
        assert times["publish"][1] == group.end_time_unix_nano
    assert set(receiver.tokens) == {"Bearer s3cret"}
    assert "s3cret" not in repr(fed.workplace.settings)


def test_failures_and_rewinds_are_traces_too(fed: HandFed, receiver: EventReceiver) -> None:
    with fed.owning() as owner:
        process(fed, owner, 1, 1)
        owner.report("begin", {"first_id": 2, "last_id": 3})
        owner.report("failed", {"error": "boom", "triggers": 2, "decision": "EndRun"})
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=0)))
    _, failed, rewind = [span for span in spans(receiver) if not span.parent_span_id]
    assert (failed.status.message, failed.status.code) == ("boom", 2)
    assert attributes(failed)["drainmark.last_sequence_id"] == 3
    assert (rewind.name, attributes(rewind)["drainmark.to"]) == ("rewind", 0)
    assert rewind.start_time_unix_nano < rewind.end_time_unix_nano


def test_the_metrics_are_those_of_the_command(fed: HandFed, receiver: EventReceiver) -> None:
    fed.drain(2)
    expected = as_json(fed.region, region_metrics(fed.workplace, fed.region))
    found = numbers(receiver)
    assert found == {name: value for name, value in expected.items() if value is not None}
    assert (found["drainmark_state"], found["drainmark_rows_in_total"]) == (State.STARTED, 6)
    (metric,) = [each for each in newest_metrics(receiver) if each.name == "drainmark_rows_in_total"]
    assert (metric.sum.is_monotonic, metric.sum.aggregation_temporality) == (True, 2), "cumulative"


def test_between_groups_metrics_are_sent_now_and_then(
    fed: HandFed, receiver: EventReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "EVERY_SECONDS", 0.0)
    with fed.owning() as owner:
        process(fed, owner, 1, 1)
        monkeypatch.setattr(telemetry, "EVERY_SECONDS", 3600.0)
        process(fed, owner, 2, 2)
    assert [path for path, _ in receiver.posted].count("/v1/metrics") == 2


def test_nobody_waits_for_a_receiver_that_hangs_and_the_log_says_it_once(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "END_SECONDS", 0.1)
    receiver.hangs.clear()
    with fed.owning() as owner:
        process(fed, owner, 1, 1)
        eventually(lambda: receiver.asked, "the first of them, under way")
        for number in (2, 3):
            process(fed, owner, number, number)
    assert fed.history().committed_id == 3
    (told,) = caplog.messages
    assert "3 traces and metrics were not taken" in told, "and one is under way"
    receiver.hangs.set()


def test_a_receiver_that_is_away_fails_nothing(
    fed: HandFed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "SEND_SECONDS", 1.0)
    fed.workplace.settings = fed.workplace.settings.model_copy(update={"otlp_url": "http://127.0.0.1:9"})
    fed.drain()
    (told,) = caplog.messages
    assert "were not taken by the receiver of OTLP" in told


def test_a_redirect_is_no_delivery(fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.refuses = 302
    with fed.owning() as owner:
        process(fed, owner, 1, 1)
    (told,) = caplog.messages
    assert "2 traces and metrics were not taken" in told
    assert receiver.asked == 1, "the metrics do not wait for it, too"


def test_a_trace_at_which_the_receiver_always_fails_holds_up_no_others(
    fed: HandFed, receiver: EventReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refuses, receiver.says = 500, "too odd"
    receiver.refuses_if = lambda body: receiver.asked == 1
    with fed.owning() as owner:
        for number in (1, 2, 3):
            process(fed, owner, number, number)
    groups = [attributes(span)["drainmark.first_sequence_id"] for span in spans(receiver) if not span.parent_span_id]
    assert groups == [2, 3]
    assert numbers(receiver)["drainmark_rows_in_total"] == 6
    assert receiver.asked == 4, "it is not sent again and again meanwhile"
    (told,) = caplog.messages
    assert "1 traces and metrics were not taken by the receiver of OTLP" in told
    assert "500 Internal Server Error: too odd" in told


def test_a_receiver_that_asks_for_a_moment_gets_the_trace_after_it(fed: HandFed, receiver: EventReceiver) -> None:
    receiver.refuses, receiver.patience = 503, "0"
    receiver.refuses_if = lambda body: receiver.asked == 1
    with fed.owning() as owner:
        process(fed, owner, 1, 3)
    assert [span.name for span in spans(receiver) if not span.parent_span_id] == ["group"]


def test_without_the_extra_the_remedy_is_told(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "drainmark.orchestration.exporters.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(UsageError) as caught, fed.owning():
        pass
    assert caught.value.remedy == "pip install 'drainmark[otel]'"
