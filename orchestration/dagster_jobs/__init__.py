"""The jobs and sensors in Dagster, and the launch of runs."""
