"""Generates the dialogues from which the bundled model learns.

words, values, numbers_in_words: what everything is made of      conversation: what a dialogue is
tool_maker, requests, results, calling: made-up tools in use     catalogue, everyday: tools as people declare them
small_talk, arithmetic, lists, knowledge, stories, plain: no tool needed
filler, long_prompts: a request beside a long text               mix: how much of each     rendering: the text of it
"""
