"""Runs a model on the hardware at hand and reports whether its answers can be trusted.

It runs engines, kernels and parsers as a server does, with requests alone and together, and compares the results.
Knows no HTTP and prints nothing.
"""
