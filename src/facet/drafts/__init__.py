"""Guesses how requests go on, and decides how many guesses a step should compute. Knows token ids, no tensors."""
