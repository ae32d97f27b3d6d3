"""Files of lines: looked at before Spark reads them, whole or by ranges, and parsed here where they are plain."""
