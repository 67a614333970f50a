"""torchatlas in other tools: callbacks, plugins and adapters. One file or folder each, imported only when asked for."""
