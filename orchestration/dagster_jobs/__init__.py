"""What Dagster runs: jobs, sensors, checks, and how runs are launched."""
