"""The rows of one person leave what Drainmark keeps: tables and what rewinds read of them, logs, notes, messages."""
