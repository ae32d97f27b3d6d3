"""Adapters to systems outside the process: Delta tables, the registry, stores, sinks, Spark."""
