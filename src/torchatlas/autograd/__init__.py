"""The graph that autograd builds behind a tensor."""
