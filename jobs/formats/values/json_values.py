"""Tokens of JSON as columns of the declared types.

A token stands for one value of a record: `str` is a JSON string; `bytes` are the characters of a number, or of any
value in a text column; `True`, `False` and `None` are the words; dictionaries and lists have tokens. Columns are built
one after the other, at every depth, so that the texts of all records become values at once.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from drainmark.jobs.formats.values.grammar import Rules, misfit, values_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField


class Misfit(NamedTuple):
    """Why a token is no value of its column.

    Attributes:
        path: of the token in the column, such as `.b[3]`.
        reason: for people; None if the token is an object or an array, and the column wants its characters.
    """

    path: str
    reason: str | None


class Column(NamedTuple):
    """Values of one type, null for each misfit, and the first misfit at each place that has one."""

    values: pa.Array
    misfits: Mapping[int, Misfit]


_SHOWN = 64
_NUMBERS, _TEXTS = frozenset[type]({bytes, NoneType}), frozenset[type]({str, NoneType})
_WORDS = {True: "true", False: "false"}
_TOKENS: Mapping[str, frozenset[type]] = {
    **dict.fromkeys(("byte", "short", "integer", "long", "float", "double"), _NUMBERS),
    "decimal": _NUMBERS | _TEXTS,
    "boolean": frozenset({bool, NoneType}),
    "string": frozenset({str, bytes, bool, NoneType}),
    "struct": frozenset({dict, NoneType}),
    "map": frozenset({dict, NoneType}),
    "array": frozenset({list, NoneType}),
}
"""The tokens that may become values of a type; of other types, such as times: texts."""


def fields_of(
    objects: Sequence[Mapping[str, Any] | None], fields: Sequence[StructField], rules: Rules
) -> tuple[list[pa.Array], dict[int, Misfit]]:
    """Return a column for each field of objects, and the first misfit of each object that has one."""
    names = [field.name for field in fields]
    columns, misfits = [], misspelt(objects, names)
    for field, tokens in zip(fields, _members(objects, names), strict=True):
        found = column_of(tokens, field.dataType, rules)
        columns.append(found.values)
        for place, (path, reason) in found.misfits.items():
            misfits.setdefault(place, Misfit(f".{field.name}{path}", reason))
    return columns, misfits


def _members(objects: Sequence[Any], names: Sequence[str]) -> list[Sequence[Any]]:
    """Return the tokens of all objects for each name."""
    if objects and len(names) > 1:
        with suppress(KeyError, TypeError):  # in most files each record has each field
            return [*zip(*map(operator.itemgetter(*names), objects), strict=True)]
    return [[None if each is None else each.get(name) for each in objects] for name in names]


def misspelt(objects: Iterable[Mapping[str, Any] | None], declared: Sequence[str]) -> dict[int, Misfit]:
    """Return the objects with a name that differs from a declared one only in case, and without the declared one."""
    objects = [*objects]
    strangers = set[str]().union(*filter(None, objects)).difference(declared)
    folded = {name.casefold(): name for name in declared}
    near = {name: like for name in strangers if (like := folded.get(name.casefold())) is not None}
    found = {}
    for place, each in enumerate(objects if near else ()):
        names = each or {}
        for name in names:
            if name in near and near[name] not in names:
                found[place] = Misfit(f".{name}", f"declared as {near[name]!r}, and names count letter by letter")
                break
    return found


def column_of(tokens: Sequence[Any], kind: Any, rules: Rules) -> Column:
    """Return the values of tokens in the Arrow type of a Spark type; a missing member is the token `None`."""
    name = kind.typeName()
    allowed, misfits = _TOKENS.get(name, _TEXTS), {}
    found = set(map(type, tokens))
    if not found <= allowed:
        misfits = {at: _stranger(token, kind) for at, token in enumerate(tokens) if type(token) not in allowed}
        tokens = [token if type(token) in allowed else None for token in tokens]
    if name == "string" and bool in found:
        tokens = [_WORDS[token] if isinstance(token, bool) else token for token in tokens]
    build = _NESTED.get(name)
    values, more = build(tokens, kind, rules) if build else _plain(tokens, kind, rules)
    return Column(values, {**more, **misfits} if misfits else more)


def _stranger(token: Any, kind: Any) -> Misfit:
    if kind.typeName() == "string":
        return Misfit("", None)
    kinds: Mapping[type, str] = {dict: "an object", list: "an array"}
    shown = kinds.get(type(token)) or (token.decode() if isinstance(token, bytes) else json.dumps(token))[:_SHOWN]
    wanted = _WANTED.get(kind.typeName(), "a text")
    reason = f"{shown} is no {kind.simpleString()[:_SHOWN]}: JSON writes it as {wanted}"
    is_number_of_time = isinstance(token, bytes) and kind.typeName() in ("date", "timestamp", "timestamp_ntz")
    return Misfit("", f"{reason}; declare bigint for a number, and convert it" if is_number_of_time else reason)


_WANTED = {
    **dict.fromkeys(("byte", "short", "integer", "long", "float", "double"), "a number without quotes"),
    "decimal": "a number or a text",
    "boolean": "true or false",
    "struct": "an object",
    "map": "an object",
    "array": "an array",
}


def _plain(tokens: Sequence[Any], kind: Any, rules: Rules) -> Column:
    import pyarrow as pa

    name = kind.typeName()
    if name == "boolean":
        return Column(pa.array(tokens, pa.bool_()), {})
    texts = pa.array(tokens, pa.string())
    if name == "binary":
        return from_base64(texts)
    values, misfits = values_of(texts, kind, rules)
    return Column(values, {at: Misfit("", misfit(texts[at].as_py(), kind, rules)) for at in misfits})


def from_base64(texts: pa.Array) -> Column:
    """Return the bytes of texts in base64, by the alphabet and with the padding of RFC 4648."""
    import pyarrow as pa

    values: list[bytes | None] = []
    misfits = {}
    for place, text in enumerate(texts.to_pylist()):
        try:
            values.append(None if text is None else base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error) as error:
            values.append(None)
            misfits[place] = Misfit("", f"{text[:_SHOWN]!r} is no base64, in which JSON has bytes: {error}")
    return Column(pa.array(values, pa.binary()), misfits)


# --- nested ---------------------------------------------------------------------------------------------------------


def _structs(tokens: Sequence[Any], kind: Any, rules: Rules) -> Column:
    import pyarrow as pa

    columns, misfits = fields_of(tokens, kind.fields, rules)
    mask = pa.array([token is None for token in tokens], pa.bool_())
    return Column(pa.StructArray.from_arrays(columns, names=kind.names, mask=mask), misfits)


def _arrays(tokens: Sequence[Any], kind: Any, rules: Rules) -> Column:
    import pyarrow as pa

    offsets, mask = _offsets(tokens)
    items = column_of([*itertools.chain.from_iterable(filter(None, tokens))], kind.elementType, rules)
    type_ = pa.list_(pa.field("element", items.values.type))
    values = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items.values, type=type_, mask=mask)
    return Column(values, _outer(items.misfits, offsets, lambda place, at: f"[{at}]"))


def _maps(tokens: Sequence[Any], kind: Any, rules: Rules) -> Column:
    import pyarrow as pa

    offsets, mask = _offsets(tokens)
    names = [*itertools.chain.from_iterable(filter(None, tokens))]
    members = [*itertools.chain.from_iterable(token.values() for token in tokens if token)]
    items = column_of(members, kind.valueType, rules)
    keys = pa.array(names, pa.string())
    values = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items.values, mask=mask)
    return Column(values, _outer(items.misfits, offsets, lambda place, at: f"[{names[place]!r}]"))


_NESTED: Mapping[str, Any] = {"struct": _structs, "array": _arrays, "map": _maps}


def _offsets(tokens: Sequence[Any]) -> tuple[Any, pa.Array]:
    """Return where the items of each array or object begin among all items, and a mask of the nulls."""
    import numpy as np
    import pyarrow as pa

    lengths = np.fromiter((0 if token is None else len(token) for token in tokens), np.int64, len(tokens))
    mask = pa.array([token is None for token in tokens], pa.bool_())
    return np.concatenate(([0], np.cumsum(lengths))), mask


def _outer(misfits: Mapping[int, Misfit], offsets: Any, step: Any) -> dict[int, Misfit]:
    """Return the misfits of items as those of the arrays or objects that have them."""
    import numpy as np

    found: dict[int, Misfit] = {}
    for place in sorted(misfits):
        outer = int(np.searchsorted(offsets, place, side="right")) - 1
        path, reason = misfits[place]
        found.setdefault(outer, Misfit(f"{step(place, place - int(offsets[outer]))}{path}", reason))
    return found
