"""Options of a small run on the command line."""

METHODS = ["fedavg", "subtrunc:lam=0.1,b=5"]
SMALL = [
    "--data.clients=10",
    "--model.name=logistic",
    "--solver.steps=2",
    "--training.rounds=4",
    "--training.eval-every=2",
    "--training.seeds",
    "0",
    "1",
    "--methods",
    *METHODS,
]
