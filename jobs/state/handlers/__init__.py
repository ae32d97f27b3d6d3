"""The state of operators written in Python: handlers, their checkpoints, locks and permits."""
