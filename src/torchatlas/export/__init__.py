"""A Graph as files and as other libraries' objects; importing this package adds every format to the graph."""
