"""Parts of other tools: callbacks, loggers, the pytest guard. Each is imported only when asked for."""
