"""Requests -> steps. The loop, its process, and the messages between; knows neither text nor JSON."""
