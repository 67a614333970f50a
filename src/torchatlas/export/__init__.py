"""A Graph as files and as other libraries' objects; importing this package adds every format to the graph.

A new format is one file here with one decorated function. Other libraries are imported when they are used.
"""

from torchatlas.export import (
    archive,
    chakra,
    chrome,
    gexf,
    graphml,
    html,
    json,
    model_explorer,
    networkx,
    node_data,
    node_table,
    onnx,
    speedscope,
)

__all__ = [
    "archive",
    "chakra",
    "chrome",
    "gexf",
    "graphml",
    "html",
    "json",
    "model_explorer",
    "networkx",
    "node_data",
    "node_table",
    "onnx",
    "speedscope",
]
