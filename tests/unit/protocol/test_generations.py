"""States that begin anew: the table of a state at each id and after each rewind."""

from __future__ import annotations

import dataclasses
import json

import pytest
from checkpoint_rows import claim, group, rewind

from drainmark.jobs.protocol.digest import digest_of, history_from
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.schema_compatibility import TableChange, change_of, is_state, misfit
from drainmark.jobs.protocol.records.state_generations import first_generation, labels_in_force, state_table


def described(name: str, *columns: str, **facts: object) -> RegionTable:
    """Return a table; a column is `name:type`."""
    fields = [{"name": c.partition(":")[0], "type": c.partition(":")[2] or "long"} for c in columns]
    given = {"role": TableRole.CHANGES, "operator": name.rpartition("/")[2].partition(".")[0], **facts}
    return RegionTable(name=name, schema_json=json.dumps({"type": "struct", "fields": fields}), **given)  # type: ignore[arg-type]


STATE = described("state/app/totals", "k:string", "n", keys=("k",))


def claimed(next_id: int, epoch: int, label: str = "") -> object:
    table = dataclasses.replace(STATE, name=state_table("app", "totals", label=label))
    dropped = {"dropped_states": {"totals": label}} if label else {}
    return claim(next_id, epoch, "clean", tables=[table.to_json()], operators={"totals": str(epoch)}, **dropped)


def test_a_state_is_in_a_table_of_its_own_after_it_was_dropped() -> None:
    assert state_table("app", "totals", label="0a1b") == "state/app/totals.0a1b"
    assert state_table("app", "totals", "port", label="0a1b") == "state/app/totals-port.0a1b"
    assert first_generation("state/app/totals-port.0a1b") == "state/app/totals-port"
    assert first_generation("lake/my-table") == "lake/my-table"


@pytest.mark.seed("N27")
def test_a_rewind_to_before_a_drop_returns_to_the_state_of_then() -> None:
    rows = [claimed(1, 1), *group(1, [1, 2]), claimed(3, 2, "a"), *group(3, [3]), claimed(4, 3, "b"), *group(4, [4])]
    history = RegionHistory.from_rows(rows)
    assert labels_in_force(history.generations) == {"totals": "b"}
    assert {table.name for table in history.former} == {"state/app/totals", "state/app/totals.a"}
    for to, expected in ((4, {"totals": "b"}), (3, {"totals": "a"}), (2, {}), (0, {})):
        assert labels_in_force(history.with_rows([rewind(5, to, 3)]).generations) == expected


def test_a_drop_that_was_undone_is_not_in_force_again_after_further_ids() -> None:
    rows = [claimed(1, 1), *group(1, [1]), claimed(2, 2, "a"), rewind(2, 1, 2), *group(3, [2])]
    assert labels_in_force(RegionHistory.from_rows(rows).generations) == {}


def test_verbs_that_have_no_code_keep_what_the_last_code_said() -> None:
    history = RegionHistory.from_rows([claimed(1, 1, "a"), claim(1, 2, "clean")])
    assert history.operators == {"totals": "1"}
    assert labels_in_force(history.generations) == {"totals": "a"}
    assert RegionHistory.from_rows([claim(1, 1)]).operators is None


def test_a_digest_of_before_knows_no_code_and_no_drops() -> None:
    from drainmark.jobs.protocol.id_runs import Archive

    value = json.loads(digest_of(RegionHistory.from_rows([claimed(1, 1, "a")])))
    del value["operators"], value["generations"], value["code"]
    archive: Archive = None  # type: ignore[assignment]  # nothing is read from it
    history = history_from(json.dumps(value), archive)
    assert history is not None
    assert (history.operators, history.generations) == (None, {})


def test_a_digest_keeps_up_to_where_a_table_knows_the_region() -> None:
    other = described("state/app/others")
    rows = [
        claimed(1, 1),
        *group(1, [1, 2]),
        claim(3, 2, "clean", tables=[other.to_json()], operators={"others": "1"}),
        *group(3, [3, 4]),
    ]
    history = RegionHistory.from_rows(rows)
    kept = history_from(digest_of(history), archive=None)  # type: ignore[arg-type]
    assert kept is not None
    assert kept.left == history.left == {STATE.name: 2}
    assert history.with_rows([rewind(5, 1, 3)]).left == {STATE.name: 1}
    assert history.with_rows([claimed(5, 3)]).left == {other.name: 4}


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (STATE, TableChange.KEPT),
        (described(STATE.name, "k:string", "n", "m", keys=("k",)), TableChange.INCOMPATIBLE),
        (described(STATE.name, "k:string", "n", "m", keys=("k",), evolves=True), TableChange.WIDENED),
        (described(STATE.name, "k:string", keys=("k",), evolves=True), TableChange.INCOMPATIBLE),
        (described(STATE.name, "k:string", "n:string", keys=("k",), evolves=True), TableChange.INCOMPATIBLE),
        (described(STATE.name, "n", "k:string", keys=("k",)), TableChange.INCOMPATIBLE),
        (described(STATE.name, "k:string", "n", keys=("k", "n")), TableChange.INCOMPATIBLE),
        (described(STATE.name, "other", keys=("k",), adopted=True), TableChange.KEPT),
    ],
)
def test_only_columns_that_come_to_what_evolves_are_compatible(after: RegionTable, change: TableChange) -> None:
    assert change_of(STATE, after) is change
    assert bool(misfit(STATE, after)) == (change is TableChange.INCOMPATIBLE)
    assert change_of(None, after) is TableChange.NEW


def retained(of: str, extent: float | None) -> RegionTable:
    return dataclasses.replace(STATE, retention={"of": of, "reach": extent})


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (retained("rows of a key", 5), retained("rows of a key", 3), ""),
        (retained("rows of a key", 5), retained("rows of a key", 5), ""),
        (retained("rows of a key", 3), retained("rows of a key", 1_000_000), "it keeps 3 rows of a key, and 1000000"),
        (retained("rows of a key", 3), retained("differences of `km`", 3), "for differences of `km`, was for rows"),
        (retained("windows of 3 rows", None), retained("windows of 3 rows", None), ""),
        (retained("windows of 3 rows", None), retained("windows of 2 rows", None), "was for windows of 3 rows"),
        (STATE, retained("rows of a key", 3), ""),
        (retained("rows of a key", 3), STATE, ""),
    ],
)  # fmt: skip
def test_a_state_reaches_no_further_back_than_it_was_kept(before: RegionTable, after: RegionTable, why: str) -> None:
    """Windows may become smaller; rows for larger ones are gone (V154). Older claims do not say, and are accepted."""
    assert why in misfit(before, after)
    assert bool(misfit(before, after)) == bool(why)
    assert RegionTable.from_json(json.loads(json.dumps(after.to_json()))) == after


@pytest.mark.seed("N27")
def test_a_rewind_returns_to_the_reach_of_then() -> None:
    """The row of the rewind names the tables as the withdrawn code declared them."""
    wide, narrow = (retained("rows of a key", access) for access in (5, 3))
    rows = [
        *(claim(1, 1, tables=[wide.to_json()]), *group(1, [1, 2])),
        *(claim(3, 2, tables=[narrow.to_json()]), *group(3, [3])),
    ]
    folded = RegionHistory.from_rows(rows)
    digest = digest_of(RegionHistory.from_rows(rows[:1]))
    kept = history_from(digest, archive=None)  # type: ignore[arg-type]
    assert kept is not None
    for history in (folded, kept.with_rows(rows[1:])):
        for to, why in ((3, "it keeps 3 rows of a key"), (2, ""), (0, "")):
            row = dataclasses.replace(rewind(4, to, 3), detail={"to": to, "tables": [narrow.to_json()]})
            found = history.with_rows([claim(4, 3, tables=[narrow.to_json()]), row]).tables
            assert why in misfit(found[0], wide)
            assert bool(misfit(found[0], wide)) == bool(why), to
    assert misfit(folded.with_rows([rewind(4, 2, 3)]).tables[0], retained("rows of a key", 6))
    value = json.loads(digest)
    del value["retentions"]
    older = history_from(json.dumps(value), archive=None)  # type: ignore[arg-type]
    assert older is not None
    after = older.with_rows([*rows[1:], rewind(4, 0, 3)])
    assert misfit(after.tables[0], retained("rows of a key", 6)), "an older digest does not say since when it is kept"


def valued(of: str, **facts: str) -> RegionTable:
    return dataclasses.replace(STATE, retention={"of": "rows", "reach": None, "values": {"n": {"of": of, **facts}}})


CODE = {"code": "ab", "python": "3.11"}


@pytest.mark.seed("RT3")
@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (valued("sum(p)"), valued("sum(p)"), ""),
        (valued("sum(p)"), valued("sum(q)"), "n is sum(q), was sum(p)"),
        (valued("sum(p)"), valued("mine", **CODE), "n is mine, was sum(p)"),
        (valued("mine", **CODE), valued("renamed", **CODE), ""),
        (valued("mine", **CODE), valued("mine", code="cd", python="3.11"), "the code of n (mine) is another"),
        (valued("mine", **CODE), valued("mine", code="cd", python="3.12"), ""),
        (valued("mine", identity="i", **CODE), valued("mine", identity="i", code="cd", python="3.11"), ""),
        (valued("mine", **CODE), valued("mine", identity="i", code="cd", python="3.11"), "the code of n"),
        (retained("rows", None), valued("sum(p)"), ""),
        (valued("sum(p)"), retained("rows", None), ""),
    ],
)  # fmt: skip
def test_a_value_goes_on_as_what_it_was(before: RegionTable, after: RegionTable, why: str) -> None:
    assert why in misfit(before, after)
    assert bool(misfit(before, after)) == bool(why)
    assert RegionTable.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_the_history_of_a_sink_is_no_state() -> None:
    history = described("state/app/sink", "k:string", keys=("k",))
    visible = described("lake/t", "k:string", role=TableRole.UPSERT, operator="sink", history=history.name)
    assert not is_state(history, [history, visible])
    assert is_state(STATE, [STATE, dataclasses.replace(visible, history=STATE.name)])
