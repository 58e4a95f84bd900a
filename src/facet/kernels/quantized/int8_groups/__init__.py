"""Products on a GPU with matrices of 8-bit codes in groups, whose inputs are not rounded: GGUF's Q8_0, Q5_0, Q6_K and
Q5_K, and others with a scale of 16 bits for every 32, 64 or 128 inputs.
"""
