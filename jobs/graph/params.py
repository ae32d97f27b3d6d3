"""Parameters of an application: `class Params(dm.Params): year: int = 2005`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from drainmark.jobs.errors import UsageError


class Params(BaseModel):
    """Base class for the parameters of an application. Instances are frozen; unknown names are refused.

    A function asks for them by annotation (`params: Params`). Values come from `--set NAME=VALUE`, from Dagster's run
    config, else from the defaults; a hash of them is in each row of the checkpoint table.

    Example:
        class Limits(dm.Params):
            least: float = 100.0  # drainmark run shop.py --set least=50

        @dm.filter
        def above_the_limit(orders, limits: Limits):
            return F.col("amount") >= limits.least
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def digest(self) -> str:
        """Return a short stable hash of the values."""
        return digest_of(self.model_dump(mode="json"))


def digest_of(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a JSON-able value, keys sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def bind_params(params_class: type[Params], values: Mapping[str, Any]) -> Params:
    """Return the parameters with `values` set.

    Raises:
        UsageError: an unknown name or a value of the wrong type.
    """
    try:
        return params_class(**values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        known = ", ".join(params_class.model_fields) or "none"
        msg = f"parameters do not fit: {problems}"
        raise UsageError(msg, remedy=f"known parameters: {known}") from error
