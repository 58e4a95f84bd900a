"""Who runs next. Knows requests, counts of tokens and counts of blocks; neither tensors nor block ids."""
