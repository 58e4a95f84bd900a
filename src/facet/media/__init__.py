"""Turns the bytes of pictures, sound and video into arrays that a model's towers take.

`spec.py` reads from a checkpoint what its towers expect, `facet/prepared_media.py` has the value that all preparation
ends in. Knows neither prompts nor tensors of torch.
"""
