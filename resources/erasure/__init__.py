"""The rows of one person leave what Drainmark keeps: tables with all that their rewinds need, logs, notes, databases."""
