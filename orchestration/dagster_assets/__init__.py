"""The assets of Dagster, their metadata and roles."""
