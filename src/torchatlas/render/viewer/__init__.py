"""Graph -> one HTML file in which it can be explored. document.py makes what the page holds, sections/ its parts."""
