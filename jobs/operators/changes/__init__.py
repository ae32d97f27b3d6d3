"""Tables out of their changes: newest rows and histories, by Spark or in this process."""
