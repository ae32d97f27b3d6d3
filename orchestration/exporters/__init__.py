"""What other systems are told of a region's steps: OpenLineage events, and traces and metrics by OTLP."""
