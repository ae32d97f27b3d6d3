"""`sql`: a statement in `sql/<app>/<name>.sql`; streams are bound by name as in `spark.sql(text, lines=df)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, port_to, stream_name
from drainmark.jobs.graph.operator import Operator, Positions, Vectorises

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["sql"]


@dataclass(frozen=True, kw_only=True)
class SqlOperator(Operator):
    """A SELECT over its input streams; the analysed plan decides whether it vectorises."""

    kind: ClassVar[str] = "sql"
    summary: ClassVar[str] = "statement of the folder sql/"
    vectorises: ClassVar[Vectorises] = Vectorises.CHECKED
    positions: ClassVar[Positions] = Positions.CHECKED

    statement: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    vectorised: bool = False

    def vectorisation(self) -> Vectorises:
        return Vectorises.YES if self.vectorised else Vectorises.CHECKED

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "statement": self.statement, "arguments": dict(self.arguments)}

    def apply(self, frames: OperatorContext) -> DataFrame:
        streams = {port.parameter: rows for port, rows in zip(self.inputs, frames.inputs(self), strict=True)}
        text = frames.statement(self)
        return frames.guard(self, lambda: frames.session.sql(text, **streams, **self.arguments))


def sql(
    statement: str,
    *,
    inputs: Sequence[StreamLike],
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    vectorised: bool = False,
) -> Stream:
    """Declare a SQL statement as an operator.

    Args:
        statement: the file `sql/<app>/<statement>.sql`; it names streams as `{lines}`, arguments as `{year}`.
        inputs: the streams that the statement names.
        name: the operator's name; the statement's by default.
        arguments: values that the statement names; Spark writes each as a literal, quoted as its type needs.
        vectorised: your promise that it may process many triggers at once. It must select `_sequence_id` then.

    Example:
        # sql/shop/large.sql: select * from {orders} where amount > {least}
        large = dm.sql("large", inputs=[orders], arguments={"least": 100}, name="large_orders")
    """
    operator = SqlOperator(
        name=name or statement,
        inputs=tuple(port_to(stream, stream_name(stream)) for stream in inputs),
        statement=statement,
        arguments=arguments or {},
        vectorised=vectorised,
    )
    return declare(operator)
