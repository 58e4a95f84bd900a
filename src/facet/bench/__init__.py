"""The bench room: load on a server or an engine, and what came of it in numbers.

It talks to servers by HTTP alone, and an engine is handed to it by the command line: it knows no more of Facet's own
than of any other, and nothing here imports the engine, the models or torch.
"""
