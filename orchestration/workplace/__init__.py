"""Settings, registry, store and session of one process, and the applications that it opens."""
