"""The walk over an analysed plan: plans that may mix triggers, or cannot be parsed, force groups of one."""

from __future__ import annotations

import pytest

from drainmark.jobs.runtime.analysis.vectorisation import GroupVerdict, runs_in_python, verdict_of

STREAM = "LogicalRDD [_sequence_id#1L, user#2], false"


NAMED = (
    f"WithCTE\n:- CTERelationDef 0, false\n:  +- {STREAM}\n"
    ":- CTERelationDef 1, false\n:  +- Project [user#7]\n:     +- CTERelationRef 0, true, [_sequence_id#6L, user#7]\n"
)
"""A common table expression that reads the stream through another one, and drops the id."""


class Explained:
    """A substitute for a frame, with the parts that the walk uses: the columns, and the text of the plans."""

    def __init__(self, plan: str, columns: tuple[str, ...] = ("_sequence_id", "user")) -> None:
        self.plan, self.columns = plan, columns

    def _explain_string(self, mode: str) -> str:
        assert mode == "extended"
        return (
            f"== Parsed Logical Plan ==\n...\n\n== Analyzed Logical Plan ==\nuser: string\n{self.plan}\n\n"
            "== Optimized Logical Plan ==\nSort [x ASC]"
        )


def judged(plan: str, **options: tuple[str, ...]) -> GroupVerdict:
    return verdict_of(Explained(plan, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plan",
    [
        STREAM,
        f"Project [_sequence_id#1L, upper(user#2) AS u#3]\n+- Filter (length(user#2) > 2)\n   +- {STREAM}",
        f"Filter user#2 IN (list#5 [])\n:  +- Project [user#9]\n:     +- LogicalRDD [user#9], false\n+- {STREAM}",
        f"Filter exists#5 [user#2]\n:  +- Filter (outer(user#2) = user#9)\n:     +- LogicalRDD [user#9]\n+- {STREAM}",
        "Aggregate [_sequence_id#8L], [_sequence_id#8L]\n+- Project [s#7L AS _sequence_id#8L]\n"
        f"   +- Project [_sequence_id#1L AS s#7L]\n      +- {STREAM}",
        "Deduplicate [_sequence_id#8L]\n"
        f"+- Project [coalesce(_sequence_id#1L, cast(0 as bigint)) AS _sequence_id#8L]\n   +- {STREAM}",
        "Deduplicate [_sequence_id#8L]\n+- Project [coalesce(_sequence_id#1L, _sequence_id#7L) AS _sequence_id#8L]\n"
        f"   +- Join FullOuter, (_sequence_id#1L = _sequence_id#7L)\n      :- {STREAM}\n"
        "      +- LogicalRDD [_sequence_id#7L], false",
        "Deduplicate [_sequence_id#8L]\n"
        f"+- Project [cast(_sequence_id#1L as bigint) AS _sequence_id#8L, user#2]\n   +- {STREAM}",
        f"Union false, false\n:- Project [_sequence_id#1L, a,b AS u#3]\n:  +- {STREAM}\n+- {STREAM}",
        "Aggregate [_sequence_id#1L], [_sequence_id#1L]\n+- Union false, false\n"
        f"   :- Project [_sequence_id#1L, concat(user#2, user#2) AS u#3]\n   :  +- {STREAM}\n   +- {STREAM}",
        f"Aggregate [_sequence_id#1L, user#2], [_sequence_id#1L, count(1) AS n#4L]\n+- {STREAM}",
        f"Deduplicate [user#2, _sequence_id#1L]\n+- {STREAM}",
        f"Union false, false\n:- {STREAM}\n+- {STREAM}",
        f"Join LeftOuter, (user#2 = user#9)\n:- {STREAM}\n+- LogicalRDD [user#9], false",
        f"Join Inner, (_sequence_id#1L = _sequence_id#7L)\n:- {STREAM}\n+- LogicalRDD [_sequence_id#7L], false",
        f"Join Inner, (_sequence_id#1L <=> _sequence_id#7L)\n:- {STREAM}\n+- LogicalRDD [_sequence_id#7L], false",
        f"Join Inner, ((user#2 = u#8) AND (NOT (n#3 = m#9) AND (_sequence_id#1L = _sequence_id#7L)))\n:- {STREAM}\n"
        "+- LogicalRDD [_sequence_id#7L, u#8, m#9], false",
        f"Join LeftOuter, (user#2 = user#9)\n:- {STREAM}\n+- Aggregate [user#9], [user#9]\n   +- LogicalRDD [user#9]",
        f"FlatMapGroupsInPandas [_sequence_id#1L, user#2], f(user#2)#3, [_sequence_id#4L, user#5]\n+- {STREAM}",
        "WithCTE\n:- CTERelationDef 0, false\n:  +- SubqueryAlias w\n"
        f":     +- {STREAM}\n+- CTERelationRef 0, true, [_sequence_id#1L, user#2], false, false",
        "WithCTE\n:- CTERelationDef 0, false\n:  +- Aggregate [user#9], [user#9]\n:     +- LogicalRDD [user#9]\n"
        f"+- Join LeftOuter, (user#2 = user#9)\n   :- {STREAM}\n   +- CTERelationRef 0, true, [user#9], false, false",
    ],
)
def test_what_keeps_triggers_apart_vectorises(plan: str) -> None:
    assert judged(plan).vectorises


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (f"Deduplicate [user#2]\n+- {STREAM}", "Deduplicate"),
        (f"Aggregate [user#2], [_sequence_id#1L, user#2]\n+- {STREAM}", "Aggregate"),
        (f"Window [row_number() AS r#3], [user#2], [user#2 ASC]\n+- {STREAM}", "Window"),
        (f"GlobalLimit 1\n+- LocalLimit 1\n   +- {STREAM}", "Limit"),
        (f"Sort [user#2 ASC], true\n+- {STREAM}", "Sort"),
        (f"Sample 0.0, 0.5, false, 7\n+- {STREAM}", "Sample"),
        (f"Project [_sequence_id#1L, rand(7) AS r#3]\n+- {STREAM}", "rand"),
        (f"Project [_sequence_id#1L, monotonically_increasing_id() AS r#3]\n+- {STREAM}", "monotonically"),
        (f"Join Inner, (user#2 = user#5)\n:- {STREAM}\n+- LogicalRDD [_sequence_id#4L, user#5]", "mixes triggers"),
        (f"Join FullOuter, (user#2 = user#9)\n:- {STREAM}\n+- LogicalRDD [user#9]", "mixes triggers"),
        (f"Join RightOuter, (user#2 = user#9)\n:- {STREAM}\n+- LogicalRDD [user#9]", "mixes triggers"),
        (
            f"Filter (n#3 = scalar-subquery#5 [])\n:  +- Aggregate [max(n#3)]\n:     +- {STREAM}\n+- {STREAM}",
            "subquery",
        ),
        (f"Filter user#2 IN (list#5 [])\n:  +- Project [user#9]\n:     +- {STREAM}\n+- {STREAM}", "subquery"),
        (f"Project [cast(1 as bigint) AS _sequence_id#5L, user#2]\n+- {STREAM}", "not that of the rows"),
        (f"Project [-_sequence_id#1L AS _sequence_id#5L, user#2]\n+- {STREAM}", "not that of the rows"),
        (f"Project [n#4L AS _sequence_id#5L, user#2]\n+- {STREAM}", "not that of the rows"),
        (f"Generate explode(few#4), false, [_sequence_id#5L]\n+- {STREAM}", "not that of the rows"),
        (
            f"Project [coalesce(0, _sequence_id#1L) AS _sequence_id#5L]\n+- {STREAM}",
            "not that of the rows",
        ),
        (
            "Project [coalesce(_sequence_id#7L, _sequence_id#8L) AS _sequence_id#9L]\n"
            "+- Join FullOuter, (_sequence_id#1L = _sequence_id#8L)\n"
            "   :- Join LeftOuter, (_sequence_id#1L = _sequence_id#7L)\n"
            f"   :  :- {STREAM}\n   :  +- LogicalRDD [_sequence_id#7L], false\n"
            "   +- LogicalRDD [_sequence_id#8L], false",
            "not that of the rows",
        ),
        (
            f"Union false, false\n:- {STREAM}\n+- Project [other#4L, user#2]\n   +- {STREAM}",
            "not that of the rows",
        ),
        (
            "Aggregate [_sequence_id#7L], [_sequence_id#7L]\n+- Join LeftOuter, (_sequence_id#1L = _sequence_id#7L)\n"
            f"   :- {STREAM}\n   +- LogicalRDD [_sequence_id#7L], false",
            "Aggregate",
        ),
        (f"MapInPandas f(user#2), [_sequence_id#5L]\n+- {STREAM}", "MapInPandas"),
        (f"FlatMapGroupsInPandas [user#2], f(user#2)#3, [_sequence_id#4L]\n+- {STREAM}", "FlatMapGroupsInPandas"),
        (
            f"{NAMED}+- Aggregate [user#7], [user#7, count(1) AS n#8L]\n   +- CTERelationRef 1, true, [user#7]",
            "Aggregate",
        ),
        (f"{NAMED}+- Join Inner, (user#2 = user#7)\n   :- {STREAM}\n   +- CTERelationRef 1, true, [user#7]", "mixes"),
    ],
)
def test_what_may_mix_triggers_forces_groups_of_one_and_says_why(plan: str, reason: str) -> None:
    verdict = judged(plan)
    assert not verdict.vectorises
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "condition",
    [
        "(_sequence_id#1L <= _sequence_id#7L)",
        "(_sequence_id#1L >= _sequence_id#7L)",
        "NOT (_sequence_id#1L = _sequence_id#7L)",
        "((user#2 = u#8) AND NOT (_sequence_id#1L = _sequence_id#7L))",
        "((user#2 = u#8) OR (_sequence_id#1L = _sequence_id#7L))",
        "(((user#2 = u#8) OR (_sequence_id#1L = _sequence_id#7L)) AND (user#2 = u#8))",
        "coalesce((_sequence_id#1L = _sequence_id#7L), true)",
        "((_sequence_id#1L = _sequence_id#7L) <=> false)",
        "(_sequence_id#1L = _sequence_id#1L)",
        "(_sequence_id#1L = (_sequence_id#7L + cast(1 as bigint)))",
    ],
)
def test_a_join_on_anything_but_equal_ids_mixes_triggers(condition: str) -> None:
    """An order of ids, or a difference, is not equality; neither is an equality that need not hold."""
    verdict = judged(f"Join Inner, {condition}\n:- {STREAM}\n+- LogicalRDD [_sequence_id#7L, u#8], false")
    assert not verdict.vectorises
    assert "mixes triggers" in verdict.reason


PLACED = "LogicalRDD [_sequence_id#1L, _position#2, user#3], false"


@pytest.mark.parametrize(
    ("plan", "keeps"),
    [
        (f"Project [_sequence_id#1L, _position#2, upper(user#3) AS u#4]\n+- Filter (user#3 > 2)\n   +- {PLACED}", True),
        (f"Project [_sequence_id#1L, _position#2, e#4]\n+- Generate explode(few#5), [e#4]\n   +- {PLACED}", False),
        (f"Project [_sequence_id#1L, struct(block, 0) AS _position#5]\n+- {PLACED}", False),
        (f"Union false, false\n:- {PLACED}\n+- {PLACED}", False),
        (f"Join LeftOuter, (user#3 = user#9)\n:- {PLACED}\n+- LogicalRDD [user#9], false", False),
    ],
)  # fmt: skip
def test_rows_keep_their_places_where_none_comes_twice(plan: str, keeps: bool) -> None:
    verdict = judged(plan, columns=("_sequence_id", "_position", "user"))
    assert verdict.vectorises
    assert verdict.keeps_places is keeps
    assert not judged(plan).keeps_places, "there is no position"


def test_a_row_with_another_id_is_not_in_its_place() -> None:
    plan = f"Project [_position#2, cast(1 as bigint) AS _sequence_id#5L]\n+- {PLACED}"
    assert not judged(plan, columns=("_sequence_id", "_position")).keeps_places


def test_a_function_of_several_outputs_is_judged_by_all_of_them() -> None:
    keeps, mixes = judged(PLACED, columns=("_sequence_id", "_position")), judged(f"Sort [user#3 ASC]\n+- {PLACED}")
    explodes = judged(f"Generate explode(array(1)), false, [e#4]\n+- {PLACED}")
    assert keeps.with_other(keeps) == keeps
    assert not keeps.with_other(explodes).keeps_places
    assert not explodes.with_other(keeps).keeps_places
    assert not keeps.with_other(mixes).vectorises
    assert mixes.with_other(keeps) == mixes


@pytest.mark.seed("RT6")
@pytest.mark.parametrize(
    ("plan", "keeps"),
    [
        (f"Project [_sequence_id#1L, _position#2, e#4]\n+- Generate explode(few#5), [e#4]\n   +- {PLACED}", True),
        (f"MapInPandas made(_sequence_id#1L, _position#2)\n+- {PLACED}", True),
        (f"Project [_sequence_id#1L, struct(block, 0) AS _position#5]\n+- {PLACED}", False),
        (f"Union false, false\n:- {PLACED}\n+- {PLACED}", False),
        (f"Join LeftOuter, (user#3 = user#9)\n:- {PLACED}\n+- LogicalRDD [user#9], false", False),
        (f"Sort [_sequence_id#1L ASC]\n+- {PLACED}", False),
    ],
)
def test_what_is_made_of_one_row_keeps_its_order_where_nothing_moves_it(plan: str, keeps: bool) -> None:
    assert judged(plan, columns=("_sequence_id", "_position", "user")).keeps_order is keeps
    assert not judged(plan).keeps_order, "there is no position"


def test_a_result_without_the_id_forces_groups_of_one() -> None:
    verdict = judged(f"Project [user#2]\n+- {STREAM}", columns=("user",))
    assert not verdict.vectorises
    assert "dm.select" in verdict.reason


@pytest.mark.parametrize(
    "plan",
    [
        "",
        f"Project [_sequence_id#1L, a\nb AS c#3]\n+- {STREAM}",
        f"Filter (user#2 = a)\n+- Join Inner, (user#2 = a\n+- b)\n   :- {STREAM}\n   +- LogicalRDD [user#9]",
    ],
)
def test_a_plan_that_cannot_be_read_forces_groups_of_one(plan: str) -> None:
    assert not judged(plan).vectorises


@pytest.mark.parametrize(
    ("node", "is_python"),
    [
        ("Project [_sequence_id#0L, <lambda>(user#2)#3 AS w#4]", True),
        ("Project [plus(upper(user#2), 1)#6L AS plus(upper(user), 1)#7L]", True),
        ("Filter (<lambda>(user#2)#5 = a)", True),
        ("MapInArrow <lambda>(_sequence_id#1L, user#2)#8, [v#9], false", True),
        ("FlatMapGroupsInPandas [user#2], f(_sequence_id#1L, user#2)#10, [v#11]", True),
        ("Project [upper(user#2) AS upper(user)#19]", False),
        ("Project [_sequence_id#1L, upper(user)#19, count(1)#16L]", False),
    ],
)
def test_what_workers_run_is_told_from_what_the_jvm_runs(node: str, is_python: bool) -> None:
    assert runs_in_python(Explained(f"{node}\n+- {STREAM}")) == is_python  # type: ignore[arg-type]
