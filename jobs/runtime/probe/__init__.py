"""Probes before the first use: two triggers together must equal two triggers apart."""
