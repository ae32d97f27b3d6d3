"""Files of lines: inspected before Spark reads them, whole or by ranges, and parsed here if they are plain."""
