"""Graphs and models that run.

Whatever runs becomes a Program (program.py), and one loop runs it; who looks on is an Observer of that loop:

    torch.export's graph  --exported_program.py-->                 values kept, edited or watched: node_values.py
    a recorded graph      --recorded_program.py-->  Program.run    verify_replay.py compares every bit
    a file                --loading.py-->                          replay.py counts the ops that ran

- A traced model: traced.py (TracedModel) has one trace_variant.py per kind of input. exporting.py calls torch.export:
  free_sizes.py finds which sizes can vary, within export_deadline.py; export_recurrent.py traces LSTMs for any length.
  input_checks.py says which inputs a trace serves, trace_check.py whether it computes what the model does. A model that
  export refuses runs itself along its path (capture_fallback.py). compare_runs.py and check_compatibility.py report.
- Its files: program_file.py is the format, saving.py and loading.py go both ways, size_arithmetic.py is what a file may
  compute with sizes; value_files.py writes what nodes made.
- A recorded graph: replay_data.py is what the capture kept, replay.py runs it once more. recorded_pieces.py makes of it
  what a partition cuts (program_to_fx.py); recorded_run.py records a model for that, path_guards.py refuse inputs that
  leave the recorded path.
- What strangers' files may call: operators.py finds operators by name, preconditions.py checks what kernels do not.
"""
