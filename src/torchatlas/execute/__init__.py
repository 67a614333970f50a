"""Graphs and models that run.

Whatever runs becomes a Program (program.py), and one loop runs it; all that watch are Observers of that loop:

    torch.export's graph  --exporting.py-->                        values kept, edited or watched: node_values.py
    a recorded graph      --recorded_program.py-->  Program.run    verify_replay.py compares every bit
    a file                --loading.py-->                          replay.py counts the ops that ran

- A traced model: traced.py (TracedModel) has one trace_variant.py per kind of input, which says what inputs it serves.
  tracing.py makes them and checks them against the model; exporting.py calls torch.export, and free_sizes.py finds
  which sizes can vary within a time limit. A model that export refuses runs itself along its path
  (capture_fallback.py). compare_runs.py and check_compatibility.py report.
- Its files: program_file.py is the format and what it may compute with sizes, saving.py and loading.py go both ways.
- A recorded graph: recorded_program.py reads what the capture kept, replay.py runs it once more. recorded_run.py
  records a model that a partition cuts; recorded_pieces.py makes of it a program that refuses inputs which leave the
  recorded path, program_to_fx.py one that torch.fx can cut.
- What strangers' files may call: operators.py finds operators by name, preconditions.py checks what kernels do not.
"""
