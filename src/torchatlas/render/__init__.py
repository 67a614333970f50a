"""A Graph for people to look at. Importing this package adds the notebook view; rich is imported when text is made."""

from torchatlas.render import html

__all__ = ["html"]
