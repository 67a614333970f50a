"""Files that nobody wrote on purpose: seeds, their mutations, what a user does with them, and the processes that do it.

Each file has one subject; benchmarks/fuzz.py is the command.
"""
