"""The sections of a viewer page's document: each file here turns a Subject into members, and adds itself.

A new pane: one file in this folder, with a function under `@section(name, *extras)`.
"""

from __future__ import annotations

import importlib
import pkgutil

from torchatlas.render.viewer.sections.registered import SECTIONS, ViewerSection, section

__all__ = ["SECTIONS", "ViewerSection", "section"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
