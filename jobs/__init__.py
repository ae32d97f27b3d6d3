"""The data plane: what is declared, compiled, decided, run and kept. `ARCHITECTURE.md` has the map."""
