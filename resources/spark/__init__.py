"""The Spark session, and the test whether its executors reach all files."""
