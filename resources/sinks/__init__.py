"""Sinks outside of Delta: databases, folders and buckets with a file an id."""
