"""Reads GGUF files: one file that holds a whole model, with its config, tokenizer and template as metadata.

    container.py   the file: metadata of every type, and where each tensor lies
    types.py       the types of tensors
    blocks.py      blocks of codes and scales -> quantized matrices
    names.py       the names of tensors, as unquantized checkpoints have them
    config.py      metadata -> the fields of config.json and generation_config.json
    tokenizer.py   metadata -> tokenizer.json
    folder.py      the folder of a model, made of one file
    choosing.py    which file of a folder or a repository holds the model
    scheme.py      how the loader reads it

A file is unfolded once into a folder with the usual small files beside a link to the weights. Everything else then
finds what it finds beside any checkpoint.
"""
