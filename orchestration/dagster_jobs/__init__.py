"""The jobs and sensors of Dagster, and the launch of runs."""
