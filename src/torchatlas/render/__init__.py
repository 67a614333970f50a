"""A Graph for people to look at. Importing this package adds the notebook's views and the picture formats; what draws
them, and rich, are imported when they are needed."""

from torchatlas.render import dot, mermaid, save_and_show

__all__ = ["dot", "mermaid", "save_and_show"]
