"""SQL of texts that keep values whole: times have their microseconds, which Spark's own texts cut to milliseconds."""

from __future__ import annotations

from drainmark.jobs.frames.names import literal

_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def exact_json(row: str, *, nulls: bool) -> str:
    """Return the SQL of a struct's text in JSON.

    Args:
        nulls: whether the text names the fields that are null.
    """
    return f"to_json({row}, {_options(_TIMES | {'ignoreNullFields': str(not nulls).lower()})})"


def exact_csv(row: str, separator: str) -> str:
    """Return the SQL of a struct's text as a record of CSV, in which texts keep the blanks around them."""
    blanks = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
    return f"to_csv({row}, {_options({'sep': separator} | _TIMES | blanks)})"


def _options(options: dict[str, str]) -> str:
    return f"map({', '.join(literal(text) for option in options.items() for text in option)})"
