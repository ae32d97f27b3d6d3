"""The control plane, which joins everything, and alone knows Dagster."""
