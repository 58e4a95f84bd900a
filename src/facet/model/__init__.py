"""Computes logits from token ids. Knows checkpoints and decoders, not requests, text or scheduling."""
