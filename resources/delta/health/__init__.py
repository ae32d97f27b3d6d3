"""Health of tables: changes by others and their repair, and the facts that `doctor` asks for."""
