"""Adapters to the outside: Delta tables, the registry, stores, sinks, Spark."""
