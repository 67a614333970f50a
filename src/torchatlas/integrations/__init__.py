"""torchatlas in other people's loops and loggers: callbacks and sinks, each imported only when it is asked for.

    loop that trains ──callback or watch──▶ TrainingWatch ──▶ run.atlas, run.html, run.txt, the loggers in use

watch.py is `atlas.watch` for plain loops, lightning.py, transformers.py and accelerate.py are for trainers; all of them
tell one TrainingWatch (training_watch.py) when steps begin and end. tensorboard.py, wandb.py and mlflow.py write to
loggers; loggers.py picks one of them for an object. Each of these imports its package, and only it.
"""
