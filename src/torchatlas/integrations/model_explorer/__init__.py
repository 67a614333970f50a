"""Model Explorer opens our files: `model-explorer step.atlas --extensions=torchatlas.integrations.model_explorer`.

Model Explorer loads the module `main` of this package. Nothing in a file is ever executed.
"""
