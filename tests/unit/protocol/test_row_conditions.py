"""The conditions of `trace --where` and `erase --where`: one grammar."""

from __future__ import annotations

import random
import shlex

import pytest

from drainmark.jobs.errors import UsageError
from drainmark.jobs.protocol.persons import Person
from drainmark.jobs.protocol.row_conditions import conditions

SAID = {
    "customer = 17": {"customer": ("17",)},
    "customer=17": {"customer": ("17",)},
    "customer IN (17, 18)": {"customer": ("17", "18")},
    "customer in ('a b', c) and `first name` = 'O''Neil'": {"customer": ("a b", "c"), "first name": ("O'Neil",)},
    "a=1 AND b=2": {"a": ("1",), "b": ("2",)},
    "at = 2026-01-31T12:00:00Z": {"at": ("2026-01-31T12:00:00Z",)},
    "name='Ann Lee'": {"name": ("Ann Lee",)},
    "path=/a/b?c&e": {"path": ("/a/b?c&e",)},
    "value=null": {"value": ("null",)},
}
ONE_VALUE = {
    "word=to be, to have": {"word": ("to be, to have",)},
    "name=O'Neil": {"name": ("O'Neil",)},
    "name = Lee, Ann (Mrs)": {"name": ("Lee, Ann (Mrs)",)},
    "path=/a/b?c=d&e=f": {"path": ("/a/b?c=d&e=f",)},
    "id=YWI=": {"id": ("YWI=",)},
    "first name=Ann": {"first name": ("Ann",)},
    'size=3" x $5': {"size": ('3" x $5',)},
    "a=": {"a": ("",)},
    'a="1 2"': {"a": ("1 2",)},
    "team=the boys'": {"team": ("the boys'",)},
    "height=6'2\"": {"height": ("6'2\"",)},
    "full name = 'Ann O''Neil'": {"full name": ("Ann O'Neil",)},
    "a=b, c=d": {"a": ("b, c=d",)},
}


@pytest.mark.parametrize("text", SAID)
def test_a_text_means_its_columns_and_their_values(text: str) -> None:
    assert {each.column: each.values for each in conditions([text])} == SAID[text]
    assert {each.column: each.values for each in Person.parse(text).conditions} == SAID[text]


def test_several_texts_must_all_hold() -> None:
    assert conditions(["a=1", "b = 2"]) == conditions(["a = 1 AND b = 2"])
    assert Person.parse("a=1", "b = 2") == Person.parse("a = 1 AND b = 2")


@pytest.mark.parametrize(
    "text",
    ["", "a", "a =", "a = 1 OR b = 2", "a=1 OR b=2", "a=1 b=2", "a=1 AND", "a=1 OR", "a=1 OR 2", "a=OR b", "a > 1",
     "a = b c", "a IN ()", "a IN (1", "a=(1", "a='1", "a = 1 AND", "a=1 or b in (2)", "a=1 AND b <> 2", "x AND a=1 2",
     "a == 1", "a==1", 'a="1"', 'a = "1"', 'a="1 2"', "a=1 AND b IS NULL", "a=x y and b like 'z%'",
     "a=1 OR b between 2 and 3", "a=1 AND b NOT IN (2)", "a!=3", "a>=3", "a=>3", "a = <3", "a=~x", "'a'=3", "a=`b`",
     "NOT a=3 4", "a LIKE 'x%' b=1", "(a=3)", "a = 'b','c'", "a='O''Neil' x", "a=''x''"],
)  # fmt: skip
def test_what_may_be_meant_otherwise_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        conditions([text])
    examples = shlex.split(str(refused.value.remedy).partition(": ")[2].replace(", or", ""))
    assert all(conditions([example]) for example in examples if example != "--where")


@pytest.mark.parametrize("text", ONE_VALUE)
def test_a_value_that_needs_quotes_is_refused_with_the_quoted_form(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        conditions([text])
    _, quoted = shlex.split(str(refused.value.remedy).removeprefix("if that is one value: "))
    assert {each.column: each.values for each in conditions([quoted])} == ONE_VALUE[text]


@pytest.mark.parametrize("texts", [("a = 1 AND a = 2",), ("a=1", "a=2")])
def test_a_column_has_one_condition(texts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        conditions(texts)
    remedy = str(refused.value.remedy).partition('"')[2].rstrip('"')
    assert conditions([remedy.replace("VALUE, VALUE", "1, 2")])[0].values == ("1", "2")


@pytest.mark.parametrize("text", ["a = ''", "a IN (1, '')"])
def test_an_empty_text_is_a_value_and_names_nobody(text: str) -> None:
    assert "" in conditions([text])[0].values
    with pytest.raises(UsageError):
        Person.parse(text)


def test_any_value_between_quotes_is_that_value() -> None:
    draw = random.Random(7)
    for _ in range(2000):
        values = ["".join(draw.choices("ab '`=(),\n<ANDORIN", k=draw.randint(1, 9))) for _ in range(draw.randint(1, 3))]
        quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
        assert conditions([f"c IN ({quoted})"])[0].values == tuple(values)
