"""torchatlas in other people's tools: callbacks, loggers, pytest, adapters. Each is imported only when asked for.

    loop that trains ──callback or watch──▶ TrainingWatch ──▶ run.atlas, run.html, run.txt, the loggers in use
    test ──atlas_guard──▶ Guard ──▶ a snapshot beside the test, or a failure that lists what differs

watch.py is `atlas.watch` for plain loops, lightning.py, transformers.py and accelerate.py are for trainers; all of them
tell one TrainingWatch (training_watch.py) when steps begin and end. tensorboard.py, wandb.py and mlflow.py write to
loggers; loggers.py picks one of them for an object. guard.py is what the pytest plugin (src/pytest_torchatlas.py) gives
to tests. model_explorer.py opens our files in Model Explorer.
"""
