"""A plan as text, JSON and flow chart."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest
from shapes import (
    FIGURES,
    OPERATOR_DRIVEN,
    Beacon,
    Custom,
    Dimension,
    Functor,
    OneByOne,
    app,
    buffered,
    figure_1b,
    figure_1c,
    figure_3,
    made,
    outside,
)

import drainmark as dm
from drainmark.jobs.graph.application import Application
from drainmark.jobs.operators import catalogue
from drainmark.jobs.regions.explain import as_json, as_mermaid, as_text
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.regions.warnings import notes

TEXT = """\
app: 1 region, fingerprint FINGERPRINT

region app/lines
  trigger     operator-driven, a run drains the backlog
  groups      one trigger each, because of top
  checkpoints non-blocking: a group is processed while the last one is written and published
  starts      lines
  ends        save
  operators
    lines  beacon      many triggers at once  start
    dim    dimension                          autonomous
    words  functor     checked at first use               ← lines, dim (autonomous data)
    top    one-by-one  one trigger at a time              ← words
    save   custom      many triggers at once  end         ← top
  tables
    counts  exactly-once  by save
  parameters
    a group within 180 s, reset within 180 s, halt after 5 resets in a row, rewind by 10000 ids

autonomous app/dim
    dim  dimension
  feeds       app/lines (at most once)"""


def test_text_shows_the_whole_plan() -> None:
    plan = compile_application(
        app(
            made(Beacon, "lines", consistent=OPERATOR_DRIVEN),
            made(Dimension, "dim"),
            made(Functor, "words", "lines", "dim"),
            made(OneByOne, "top", "words"),
            made(Custom, "save", "top", table="counts"),
        )
    )
    assert as_text(plan) == TEXT.replace("FINGERPRINT", plan.fingerprint)


def test_text_names_the_functions_whose_plans_decide() -> None:
    text = as_text(compile_application(figure_1b()))
    assert "many triggers each, if the plans of op2, op4, op5 allow it" in text
    assert "periodic, 10 s after the last state" in text


@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_json_is_json(figure: str) -> None:
    value = as_json(compile_application(FIGURES[figure]()))
    assert json.loads(json.dumps(value)) == value


def test_mermaid_draws_regions_as_boxes_and_control_ports_dotted() -> None:
    lines = as_mermaid(compile_application(figure_3())).splitlines()
    assert lines[0] == "flowchart LR"
    assert '  subgraph r0["figure_3/op1, periodic"]' in lines
    assert '    n0(["op1"])' in lines
    assert '    n4[("op5")]' in lines
    assert '  n5["op6"]:::autonomous' in lines
    assert "  n3 -.-> n2" in lines
    assert lines.count("  end") == 1


@pytest.mark.seed("V47", "V48")
def test_notes_tell_what_may_be_lost_doubled_or_forgotten() -> None:
    found = notes(compile_application(figure_1c()))
    assert [note.split()[0] for note in found] == ["op5", "sevens"]


def test_notes_are_silent_on_lookups_and_declared_ports() -> None:
    plan = compile_application(
        app(
            made(Beacon, "lines", consistent=OPERATOR_DRIVEN),
            made(Dimension, "dim"),
            made(Functor, "clean", "dim"),
            made(Custom, "save", "lines", "dim", outside("clean")),
        )
    )
    assert notes(plan) == ()


@pytest.mark.seed("V46")
def test_notes_name_a_source_that_nothing_replays_and_an_end_that_nothing_keeps() -> None:
    plan = compile_application(app(made(Beacon, "a", consistent=OPERATOR_DRIVEN), made(Beacon, "b")))
    assert [note.split()[0] for note in notes(plan)] == ["a", "b"]
    assert notes(compile_application(app(made(Beacon, "b"))))[0].startswith("no region")


STAGED = """\
app: 1 region, fingerprint FINGERPRINT

region app/lines
  trigger     operator-driven, a run drains the backlog
  groups      many triggers each, if the plans of words allow it
  checkpoints non-blocking: a group is processed while the last one is written and published
  starts      lines
  ends        save
  operators
    lines  beacon   many triggers at once  start
    words  functor  checked at first use          ← lines (buffered)
    save   custom   many triggers at once  end    ← words (buffered)
  tables
    counts  exactly-once  by save
  alignment   aligned: a state is established when all stages are done with it, or after 2 s unaligned
  stages
    lines  lines
    words  words  ← lines->words
    save   save   ← words->save   checkpointed every 5 s
  channels    in memory, 1 GB in all
    lines->words  read by words  at most 1 batch    2 MB   by host, day
    words->save   read by save   at most 8 batches  64 MB
  parameters
    a group within 180 s, reset within 180 s, halt after 5 resets in a row, rewind by 10000 ids"""


def staged(**parameters: Any) -> Application:
    consistent = replace(OPERATOR_DRIVEN, **parameters)
    return app(
        made(Beacon, "lines", consistent=consistent),
        made(Functor, "words", buffered("lines", batches=1, size="2 MB", keys=["host", "day"])),
        made(Custom, "save", buffered("words", checkpoint_interval=5), table="counts"),
    )


@pytest.mark.seed("X1", "F29", "E30")
def test_text_shows_stages_and_channels_where_there_are_several() -> None:
    plan = compile_application(staged(alignment_timeout=dt.timedelta(seconds=2), max_inflight_bytes="1 GB"))
    assert as_text(plan) == STAGED.replace("FINGERPRINT", plan.fingerprint)
    durable = as_text(compile_application(staged(alignment="unaligned", channels="durable")))
    assert "unaligned: a state overtakes what is in flight" in durable
    assert "in files as they are produced, 256 MB in all" in durable


def test_json_has_stages_and_channels_with_their_kinds_and_bounds() -> None:
    (region,) = as_json(compile_application(staged(channels="durable", checkpoint_interval=dt.timedelta(0))))["regions"]
    assert [stage["stage"] for stage in region["stages"]] == ["lines", "words", "save"]
    assert region["stages"][2] == {
        "stage": "save", "starts": [], "operators": ["save"], "followers": [], "inputs": ["words->save"], "outputs": [],
        "checkpoint_interval_seconds": 5.0,
    }  # fmt: skip
    assert region["channels"][0] == {
        "channel": "lines->words", "stream": "lines", "from": "lines", "to": "words", "readers": ["words"],
        "kind": "durable", "batches": 1, "bytes": 2_000_000, "keys": ["host", "day"],
    }  # fmt: skip
    assert region["channels"][1]["keys"] == []
    assert region["parameters"]["checkpoint_interval_seconds"] == 0
    assert region["operators"][1]["ports"][0]["is_buffered"]


def test_mermaid_draws_stages_as_boxes_and_channels_thick() -> None:
    lines = as_mermaid(compile_application(staged())).splitlines()
    assert '    subgraph r0s1["stage words"]' in lines
    assert "  n0 ==> n1" in lines
    assert lines.count("    end") == 3


def test_notes_tell_that_alignment_means_nothing_without_channels() -> None:
    plan = compile_application(app(made(Beacon, "a", consistent=replace(OPERATOR_DRIVEN, alignment="unaligned"))))
    assert any("one stage" in note for note in notes(plan))
    assert not any("one stage" in note for note in notes(compile_application(staged(alignment="unaligned"))))


@pytest.mark.seed("X6")
@pytest.mark.parametrize("kind", [kind for kind in catalogue.kinds() if kind.is_sink and not kind.refused_because])
def test_every_kind_of_sink_says_why_it_can_promise_what_it_does(kind: Any) -> None:
    assert bool(kind.because) == (kind.guarantee is not None)


@pytest.mark.seed("X6", "V46", "V48")
def test_every_sink_is_labelled_and_says_why() -> None:
    with dm.application("app") as declarations:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(lines, dm.DeltaAppend("one"))
        dm.sink(lines, dm.DeltaAppend("two"))
        dm.sink(lines, dm.DatabaseAppend("shop", "three"))
        dm.autonomous(dm.functor(lambda lines: lines, name="follower"))
        dm.sink("follower", dm.DeltaAppend("four"))
    plan = compile_application(dm.build_application(declarations))
    text, found = as_text(plan), as_json(plan)
    assert "    one, two exactly-once: its files are named by the checkpoint row" in text
    assert "    database/shop/three exactly-once: rows and the version" in text
    assert "  tables      four (at-least-once)\n  since       app/lines sends rows again" in text
    assert all(table["guarantee"] and table["why"] for table in found["regions"][0]["tables"])
    assert [(part["guarantee"], bool(part["why"])) for part in found["autonomous"]] == [("at-least-once", True)]
