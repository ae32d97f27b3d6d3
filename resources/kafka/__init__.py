"""Kafka's topics, behind the interface of a `KafkaSource`."""
