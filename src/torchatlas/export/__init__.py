"""A Graph as files and as other libraries' objects; importing this package adds every format to the graph.

A new format is one file here with one decorated function. Other libraries are imported when they are used.
"""

from torchatlas.export import archive, chakra, chrome, html, json, networkx, node_table, speedscope

__all__ = ["archive", "chakra", "chrome", "html", "json", "networkx", "node_table", "speedscope"]
