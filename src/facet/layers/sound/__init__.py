"""The torch modules that turn sound into rows of a decoder."""
