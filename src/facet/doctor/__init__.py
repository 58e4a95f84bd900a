"""The doctor: runs a model on the hardware at hand and says whether its answers can be trusted.

It drives engines, kernels and parsers as servers do, alone and in company, and compares. It knows no HTTP and prints
nothing.
"""
