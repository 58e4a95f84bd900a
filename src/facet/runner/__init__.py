"""Executes a step's plan on the device. Knows devices and batches, not why these rows were chosen."""
