"""A model that is only recorded, as a program that runs: one path, and what refuses every other."""
