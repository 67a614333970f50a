"""torchatlas in other tools: callbacks, loggers, the pytest guard, adapters. Each is imported only when asked for."""
