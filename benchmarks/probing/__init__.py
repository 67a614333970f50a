"""The parts of probe_operators.py: collecting valid calls, making hostile ones of them, and running those apart."""
