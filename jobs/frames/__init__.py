"""Rows as Spark frames: their tags and order, how they come from Arrow, are counted, and are kept."""
