"""The torch modules that turn pictures into rows of a decoder."""
