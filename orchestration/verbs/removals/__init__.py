"""What leaves a home for good: rows of one person, tables that left the code, files that nobody needs."""
