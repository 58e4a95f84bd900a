"""ids -> logits. Knows checkpoints and decoders; does not know requests, text or who runs next."""
