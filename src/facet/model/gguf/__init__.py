"""Reads GGUF files: one of a whole model, with its config, tokenizer and template as metadata, and one of its towers.

    container.py   the file: metadata of every type, and where each tensor lies
    types.py       the types of tensors
    blocks.py      blocks of codes and scales -> quantized matrices
    names.py       the names of tensors, as unquantized checkpoints have them
    config.py      metadata -> the fields of config.json and generation_config.json
    tokenizer.py   metadata -> tokenizer.json
    tower_names.py, layouts.py, tower_values.py, tower_config.py
                   the same for a file of towers, which make rows of pictures and sound
    folder.py      the folder of a model, made of its file and that of its towers
    choosing.py    which files of a folder or a repository hold the model and its towers
    scheme.py      how the loader reads it

A file is unfolded once into a folder with the usual small files beside a link to the weights. Everything else then
finds what it finds beside any checkpoint.
"""
