"""A plan as text, JSON and flow chart."""

from __future__ import annotations

import json

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
    figure_1b,
    figure_1c,
    figure_3,
    made,
    outside,
)

from jobs.regions.explain import as_json, as_mermaid, as_text
from jobs.regions.notes import notes
from jobs.regions.plan import compile_application

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
    drain within 180 s, reset within 180 s, halt after 5 resets in a row, rewind by 10000 ids

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
