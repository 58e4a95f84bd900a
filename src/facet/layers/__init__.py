"""The torch modules a decoder is made of. They ask specs, never model names."""
