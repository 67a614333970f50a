"""A program that trains -> a folder with all of its steps -> tables, plots and pages over them.

recording.py is `atlas.recording`; run_recording.py watches a program step by step; journal.py is what it writes and
what `run.Run` reads: structures once, figures of every step, the last steps in full.
"""
