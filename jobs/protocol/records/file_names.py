"""Names that hold a sequence id: made from a template, and parsed with it."""

from __future__ import annotations

import re
import string

_PARTS = string.Formatter()


def name_of(template: str, sequence_id: int) -> str:
    """Return the name that a template gives an id."""
    return template.format(sequence_id=sequence_id)


def id_of(template: str, name: str) -> int | None:
    """Return the id that a name holds; None if the template makes this name from no id."""
    pattern = "".join(
        re.escape(text) + ("" if field is None else r"(\d+)") for text, field, _, _ in _PARTS.parse(template)
    )
    found = re.fullmatch(pattern, name)
    if found is None:
        return None
    number = int(found[1])
    return number if name_of(template, number) == name else None


def name_problem(template: str) -> str | None:
    """Return the mistake in a template of file names; None if there is none."""
    try:
        fields = [(field, spec) for _, field, spec, _ in _PARTS.parse(template) if field is not None]
        made = {name_of(template, number) for number in (1, 22, 333)}
    except (ValueError, KeyError, IndexError) as error:
        return f"it is no format: {error}"
    if [field for field, _ in fields] != ["sequence_id"]:
        return "it must hold {sequence_id} once, and nothing else in braces"
    if not re.fullmatch(r"(0\d+)?d?", fields[0][1] or ""):
        return "the id is to be written in digits, filled up with zeros at most"
    if len(made) < 3 or any("/" in name or "\0" in name or name.startswith((".", "_")) for name in made):
        return "it must not begin with . or _, nor hold a /"
    return None
