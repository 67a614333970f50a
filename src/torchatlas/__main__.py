"""`python -m torchatlas` is the command line."""

from torchatlas.cli import main

main()
