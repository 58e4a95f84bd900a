"""The bench room: load on a server, and what came of it in numbers.

It talks to servers by HTTP alone and knows no more of Facet's own than of any other: nothing here imports the engine,
the models or torch.
"""
