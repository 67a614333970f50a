"""The recorder in C++: build.py compiles and loads it; without it, the recorder in Python does all the work."""
