"""The projects that `init` can write: for each a folder of `shipped/templates`, whose files are written as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_SHIPPED = Path(__file__).parents[1] / "shipped" / "templates"
_SETTINGS = "drainmark.toml"
"""The file that a project has if its template has none of its own."""

_SUFFIX = ".template"
"""What Python files are called here, which are no modules of Drainmark."""


class Kind(StrEnum):
    """Name of a project that `init` can write."""

    WORDS = "words"
    LOGS = "logs"
    ORDERS = "orders"
    KAFKA = "kafka"
    S3 = "s3"
    CDC = "cdc"


@dataclass(frozen=True)
class Template:
    """A project that `init` can write.

    Attributes:
        first_steps: commands to type in the project's folder, in order.
    """

    kind: Kind
    first_steps: tuple[str, ...]

    @property
    def files(self) -> Mapping[str, str]:
        """Return the texts by path below the project."""
        folder = _SHIPPED / self.kind
        own = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        paths = {_SETTINGS: _SHIPPED / _SETTINGS, **own}
        return {name.removesuffix(_SUFFIX): paths[name].read_text(encoding="utf-8") for name in sorted(paths)}


_STEPS: Mapping[Kind, tuple[str, ...]] = {
    Kind.WORDS: ("drainmark run && drainmark show word_counts",),
    Kind.LOGS: (
        "drainmark run && drainmark show pages",
        "drainmark show error_minutes --at 1",
        "drainmark show unread_lines",
    ),
    Kind.ORDERS: (
        "drainmark run && drainmark show item_totals",
        "drainmark show item_totals --at 1",
        "drainmark quarantine list app",
    ),
    Kind.KAFKA: (
        "pip install 'drainmark[kafka]'",
        "$EDITOR drainmark.toml app.py  # fill in the cluster, the topic and its columns",
        "python send.py  # sends the sample orders to the topic",
        "drainmark run && drainmark show item_totals",
        "drainmark quarantine list app",
    ),
    Kind.S3: (
        "$EDITOR app.py drainmark.toml  # fill in the bucket, and how it is reached",
        "drainmark run && drainmark show item_totals",
    ),
    Kind.CDC: (
        "drainmark run && drainmark show customers",
        "drainmark show customers_by_country --at 1",
        "drainmark show customer_history",
        "drainmark quarantine list app",
    ),
}
TEMPLATES: Mapping[Kind, Template] = {kind: Template(kind, steps) for kind, steps in _STEPS.items()}
