"""What Dagster shows: assets, their metadata and roles."""
