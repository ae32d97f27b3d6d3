"""The jobs, sensors and checks of Dagster, and the launch of runs."""
