"""Rules on the author's functions: every kind of Spark must have the attributes that they use."""

from __future__ import annotations

from collections.abc import Iterator

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.user_code import UserFunction, attributes_used
from drainmark.jobs.regions.rules.rule_input import Draft

_VIEWS = ("createOrReplaceTempView", "createTempView", "createOrReplaceGlobalTempView", "createGlobalTempView")
"""Spark Connect looks a view up by its name each time that a plan runs, so a later file's view takes its place."""

_INSTEAD = {
    **dict.fromkeys(_VIEWS, 'frame.sparkSession.sql("select … from {rows}", rows=frame) needs no view; so does dm.sql'),
    "rdd": "mapInPandas, applyInPandas or a udf does it on frames",
    "sparkContext": "the session is `frame.sparkSession`; a udf closes over what you would broadcast",
    **dict.fromkeys(("_jdf", "_jvm", "_jsc", "_jsparkSession"), "use pyspark's public functions"),
}


def classic_only(draft: Draft) -> Iterator[Violation]:
    """A function uses an attribute that Spark Connect, and so the resident Spark, lacks or treats differently."""
    for operator in draft.application.operators:
        function: UserFunction | None = getattr(operator, "function", None)
        places = attributes_used(function.function) if function is not None else ()
        found = {(name, location) for name, location in places if name in _INSTEAD}
        for name, location in sorted(found, key=lambda use: (use[1].file, use[1].line)):
            other = "means other rows there" if name in _VIEWS else "is not there"
            yield Violation(
                rule="CLASSIC_ONLY",
                message=f"{operator.name}: .{name} is not for the resident Spark, nor for sc://: it {other}",
                operator=operator.name,
                location=location,
                remedy=_INSTEAD[name],
            )
