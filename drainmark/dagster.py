"""Drainmark in a code location of Dagster: `from drainmark.dagster import definitions`."""

from __future__ import annotations

from drainmark.orchestration.dagster_assets.translator import DrainmarkTranslator, eager
from drainmark.orchestration.dagster_jobs.project import DrainmarkProjectComponent, definitions

__all__ = ["DrainmarkProjectComponent", "DrainmarkTranslator", "definitions", "eager"]
