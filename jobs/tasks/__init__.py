"""Functions of Spark's tasks: they run on executors, touch rows there, and return facts to the driver."""
