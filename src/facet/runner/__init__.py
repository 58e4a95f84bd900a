"""A plan -> token ids. Knows devices and batches; does not know why these rows were chosen."""
