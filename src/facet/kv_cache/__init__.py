"""Tracks where keys and values are stored, by blocks, on the CPU. Knows pages, tokens and steps; no tensor."""
