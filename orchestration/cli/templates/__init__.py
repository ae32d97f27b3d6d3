"""The projects that `init` can write."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from drainmark.orchestration.cli.templates import cdc, kafka, logs, orders, s3, words
from drainmark.orchestration.cli.templates.template import Template


class Kind(StrEnum):
    """Name of a project that `init` can write."""

    WORDS = "words"
    LOGS = "logs"
    ORDERS = "orders"
    KAFKA = "kafka"
    S3 = "s3"
    CDC = "cdc"


TEMPLATES: Mapping[Kind, Template] = {
    Kind.WORDS: words.TEMPLATE,
    Kind.LOGS: logs.TEMPLATE,
    Kind.ORDERS: orders.TEMPLATE,
    Kind.KAFKA: kafka.TEMPLATE,
    Kind.S3: s3.TEMPLATE,
    Kind.CDC: cdc.TEMPLATE,
}
