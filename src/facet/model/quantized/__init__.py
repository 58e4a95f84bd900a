"""Reads the matrices of quantized checkpoints.

Each maker has a way of its own to pack codes and to name what belongs to them. A *scheme* is one such way, one file
each:

    compressed_tensors.py   integers of 4 and 8 bits, FP8, NVFP4, MXFP4, mixed
    awq.py, gptq.py         integers of 4 (and 8) bits, transposed
    fp8.py, modelopt.py     FP8 and NVFP4 of other makers
    gemma.py                Gemma's own files for phones: 2, 4 and 8 bits

`choose.py` finds a checkpoint's scheme from its config. A scheme says what format a matrix has, from the config alone
or from the headers of its tensors, and makes a `QuantizedMatrix` of what they hold. Nothing is rounded again. Which
tensors belong to which of the model's matrices is the business of `matching.py`.
"""
