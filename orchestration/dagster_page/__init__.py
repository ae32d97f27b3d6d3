"""Dagster's own web page, behind a guard: `drainmark dev` and `deploy/` serve it."""
