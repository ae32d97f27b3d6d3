"""Health of tables: what others changed and its repair, and the facts that `doctor` asks for."""
