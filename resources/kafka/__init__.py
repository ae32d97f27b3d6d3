"""Kafka's topics, behind the verbs of a `KafkaSource`."""
