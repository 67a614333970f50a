"""A Graph for people to look at. Importing this package adds the notebook's views and the picture formats; what draws
them, and rich, are imported when they are needed."""

from torchatlas.render import dot, mermaid, picture_formats

__all__ = ["dot", "mermaid", "picture_formats"]
