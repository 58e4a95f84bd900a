"""Runs requests in steps: the loop, its process, and the messages between processes. Knows neither text nor JSON."""
