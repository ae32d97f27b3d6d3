"""Adapters to what is outside: Delta tables, the registry, stores, sinks, Spark."""
