"""The sections of a viewer page's document: each file here turns a Subject into members, and adds itself.

A new pane: one file in this folder, with a function under `@section(name, *extras)`.
"""

from __future__ import annotations

from torchatlas.render.viewer.sections import info, leaves, names, outline, parameters, work
from torchatlas.render.viewer.sections.registered import SECTIONS, Section, section

__all__ = ["SECTIONS", "Section", "info", "leaves", "names", "outline", "parameters", "section", "work"]
