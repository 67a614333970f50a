"""Names and behaviour for people who come from other packages. docs/coming-from.md lists them all."""
