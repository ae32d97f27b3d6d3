"""Functions of Spark's tasks: they run on executors, process rows there, and return facts to the driver."""
