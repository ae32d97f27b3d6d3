"""The Spark session, and what its executors can reach."""
