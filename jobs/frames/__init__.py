"""Rows as Spark frames: tags, order, conversion from Arrow, counts by id, and frames that Spark keeps."""
