"""The data plane: declarations, compiled regions, the protocol, runs, state. `ARCHITECTURE.md` has the map."""
