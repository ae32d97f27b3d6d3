"""One resident Spark Connect server for each home: a run then costs a connection, not the start of a JVM.

The first query of a new client on a warm server takes 0.3 s; in a new JVM it takes 4 s, after 6 s for its start. Other
packages use `access`. `keeper` is a separate process that starts the server, restarts it when it dies, and stops it
when no process needs it any more. The two exchange `files`, and `server` is the JVM.
"""
