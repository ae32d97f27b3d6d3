"""The assets of Dagster, their checks, metadata and roles."""
