"""Measures the speed of a server or an engine.

Servers are reached only through HTTP, and the command line passes an engine in: a Facet server is treated like any
other, and nothing here imports the engine, the models or torch.
"""
