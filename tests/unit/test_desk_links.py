"""The orders of the desk for the commands of a remedy, and links to launchpads that have them filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._config import validate_config
from dagster_pages import acting, launched

from drainmark.jobs.printable import shell_word
from drainmark.orchestration.dagster_jobs.desk import VERBS, blank, config_of
from drainmark.orchestration.inspection.desk_links import DESK_JOB, desk_job, launchpad, links, orders_in
from drainmark.orchestration.verbs.operator_verbs import Verb

REGION = "app/rows"
NAMES = (
    "/srv/a b, c (1).csv",
    "it's; && drainmark reset app/rows.csv",
    "![x](/graphql?query=mutation)",
    "dé,",
    "#1 & 2",
)


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("fix the cause; then: drainmark resume app/rows", [("resume", {})]),
        ("drainmark doctor --repair --yes && drainmark resume app/rows", [("repair", {}), ("resume", {})]),
        ("go back together: drainmark reset app/rows --to 4 --cascade", [("reset", {"to": 4, "cascade": True})]),
        (
            "drainmark resume app/rows --accept-loss --reason '…'",
            [("resume", {"accept_loss": True, "reason": ""})],
        ),
        ("drainmark quarantine redrive app/rows --file 1.csv", [("redrive", {"file": "1.csv"})]),
        (
            "drainmark retract app/rows 1.csv --reason 'sent twice'",
            [("retract", {"files": ["1.csv"], "reason": "sent twice"})],
        ),
        (
            "drainmark skip app/rows --file 1.csv --file '2 3.csv' --reason '…'",
            [("skip", {"files": ["1.csv", "2 3.csv"], "reason": ""})],
        ),
        ("drainmark tables drop old --yes", [("drop", {"table": "old"})]),
        ("it's done (drainmark publish app/rows), or wait", [("publish", {})]),
        ("drainmark reset other/rows --to 4 --yes", []),
        ("drainmark history app/rows, then drainmark run app.py", []),
        ("drainmark", []),
        ("", []),
    ],
)
def test_a_command_is_an_order_of_its_region(text: str, orders: list[tuple[str, dict[str, Any]]]) -> None:
    assert list(orders_in(REGION, text)) == orders
    configs = {verb.name: config_of(verb) for verb in VERBS}
    for verb, options in orders:
        assert configs[verb](**options).model_dump(include=set(options)) == options
        assert _is_taken(verb, options)


def _is_taken(verb: str, options: Mapping[str, Any]) -> bool:
    """Does Dagster take the options of a verb from a launchpad?"""
    found = {each.name: config_of(each).to_fields_dict() for each in VERBS}[verb]
    return bool(validate_config(dg.Shape(found), dict(options)).success)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_dagster_takes_the_fields_with_which_a_launchpad_begins(verb: Verb) -> None:
    fields = blank(verb)
    assert set(fields) == set(config_of(verb).model_fields)
    assert _is_taken(verb.name, fields)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_filled_in_as_it_is_and_nothing_in_it_is_an_order_or_markdown(name: str) -> None:
    command = f"drainmark skip {REGION} --file {shell_word(name)} --reason '…'"
    shown = links(REGION, [f"fix it; then: drainmark resume {REGION}, or: {command}"])
    assert acting(shown) == []
    resumed, skipped = (launched(link) for link in re.findall(r"\]\(([^)]*)\)", shown))
    assert resumed == (desk_job(REGION), {"ops": {"order": {"config": {"verb": {"resume": {}}}}}})
    assert skipped[1]["ops"]["order"]["config"]["verb"] == {"skip": {"files": [name], "reason": ""}}


def test_the_guide_names_the_fields_of_each_verb() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md").read_text()
    table = re.search(r"\| verb \| fields \| the same as \|\n.*\n((?:\|.*\n)+)", guide)
    assert table is not None
    rows = [line.split("|")[1:3] for line in table[1].splitlines()]
    told = {
        name: set(re.findall(r"`(\w+)`", fields))
        for names, row in rows
        for name, fields in zip(re.findall(r"`(\w+)`", names), row.split(" · "), strict=True)
    }
    assert told == {verb.name: set(config_of(verb).model_fields) for verb in VERBS}


def test_the_launchpad_of_the_desk_has_the_digest() -> None:
    job, config = launched(launchpad(REGION, "reset", {"to": 4}, digest="1234-5678-9012"))
    assert job == desk_job(REGION, DESK_JOB)
    assert config["ops"]["order"]["config"] == {"digest": "1234-5678-9012", "verb": {"reset": {"to": 4}}}


def test_there_is_no_link_without_an_order() -> None:
    assert links(REGION, ["fix the file", "drainmark status"]) == ""
