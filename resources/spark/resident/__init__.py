"""One resident Spark Connect server a home: a run then costs a connection, not the start of a JVM.

`access` is what the rest uses. `keeper` is a process of its own that starts the server, restarts it when it dies, and
stops it when nobody is left who wants it; `files` is what both tell each other, and `server` is the JVM.
"""
