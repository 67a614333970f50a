"""docs/, README and the package -> the documentation site: `python -m sitegen` builds and checks it."""
