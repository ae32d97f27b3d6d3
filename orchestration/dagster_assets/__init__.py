"""The assets in Dagster, with their checks, metadata and events."""
