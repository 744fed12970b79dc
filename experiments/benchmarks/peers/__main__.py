"""Training by other simulators: ``python -m experiments.benchmarks.peers --tfds-dir FOLDER``.

Each program is a process, in a separate environment if it needs one, which the first call creates.
All start from the same parameters and the same examples of the same clients, take turns, and must
reach the same test accuracy. A peer "ours 5" is this library with ``clients_per_batch=5``. The text
of ``shakespeare`` is random, of the sizes of that preset. BlazeFL runs in threads of the
free-threaded Python that the environment variable ``PYTHON314T`` names, and in threads and
processes of the ordinary one that ``PYTHON314`` names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from experiments.benchmarks.peers import federations, interpreters
from experiments.benchmarks.peers.environment import PROGRAMS, Worker
from experiments.benchmarks.peers.programs.shared.workloads import WORKLOADS
from experiments.benchmarks.timing import environment, print_header

_COHORTS = ("pytorch_loop", "fedjax_peer", "pfl_peer", "flower_peer", *interpreters.ROWS)
PEERS = {
    "mnist": ("jax_loop", *_COHORTS),
    "clients10": _COHORTS,
    "clients100": _COHORTS,
    "clients1000": _COHORTS,
    "cifar10": ("jax_loop", "pytorch_loop", "pfl_peer"),
    "divfl": ("pytorch_loop",),
    "subtrunc": ("pytorch_loop",),
    "resnet18": ("pytorch_loop",),
    "shakespeare": ("pytorch_loop", "fedjax_peer"),
}
HISTORY = Path(__file__).parent.parent / "history.jsonl"
# Before training all programs have the same parameters; rounding decides a few near ties.
SAME_MODEL = 0.002
# Losses are of text. FedJAX's network differs a little, see programs/shared/fedjax_characters.py.
SAME_LOSS = 0.01
# Afterwards cohorts and minibatches have differed for a few rounds, in which accuracy climbs fast
# and sometimes drops to half for one of them; so the highest of each counts. Of losses, the last.
TOLERANCE = 0.05


def start(peer: str, workload: str, cache: Path) -> Worker:
    """Starts the program of a peer."""
    if peer.startswith("ours"):
        settings = peer.split()[1:]
        return Worker(peer, cache, "-m", "experiments.benchmarks.peers.ours", *settings)
    if peer in interpreters.ROWS:
        python, mode = interpreters.find_interpreter(peer), interpreters.ROWS[peer].mode
        command = "-P", str(PROGRAMS / "blazefl_peer.py"), mode
        return Worker("blazefl_peer", cache, *command, interpreter=python)
    return Worker(peer, cache, "-P", str(PROGRAMS / f"{peer}.py"), workload)


def compare(name: str, peers: Sequence[str], repeats: int, cache: Path, file: Path) -> dict:
    """Measures every program: its first repetition, the others, and the accuracy it reached."""
    workers = {peer: start(peer, name, cache) for peer in ("ours", *peers)}
    answers: dict[str, list[dict]] = {peer: [] for peer in workers}
    for worker in workers.values():
        worker.request(workload=name, data=str(file))
    at_start = [worker.request(do="accuracy")["accuracy"] for worker in workers.values()]
    _check_close(name, "accuracies", at_start, SAME_MODEL)
    is_text = WORKLOADS[name].network == "char_lstm"
    if is_text:
        _check_close(name, "losses", _losses(workers), SAME_LOSS)
    for _ in range(1 + repeats):
        for peer, worker in workers.items():
            answers[peer].append(worker.request(do="train") | worker.request(do="accuracy"))
    if is_text:
        _check_close(name, "losses", _losses(workers), TOLERANCE)
    measured = {
        peer: {
            "first": answers[peer][0]["seconds"],
            "seconds": [answer["seconds"] for answer in answers[peer][1:]],
            "core_seconds": [answer["core_seconds"] for answer in answers[peer][1:]],
            "accuracy": max(answer["accuracy"] for answer in answers[peer]),
        }
        for peer in workers
    }
    for worker in workers.values():
        worker.close()
    return measured


def _losses(workers: dict[str, Worker]) -> list[float]:
    return [worker.request(do="loss")["loss"] for worker in workers.values()]


def table(name: str, measured: dict[str, dict]) -> None:
    ours, examples = measured["ours"], WORKLOADS[name].examples
    print_header(
        f"{name} | examples/s | ours, times as fast | examples/core s | first, s | accuracy"
    )
    for peer, own in measured.items():
        times = np.median(np.divide(own["seconds"], ours["seconds"]))
        rate, core_rate = (examples / np.median(own[c]) for c in ("seconds", "core_seconds"))
        print(
            f"| {peer} | {rate:,.0f} | {times:.2f} | {core_rate:,.0f} | {own['first']:.1f} | "
            f"{100 * own['accuracy']:.1f} % |"
        )


def record(name: str, measured: dict) -> None:
    """Appends a line to the history."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    versions = {peer: _requirements(peer) for peer in measured}
    line = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "machine": environment(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[1],
        "versions": versions,
        "workload": name,
        "measured": measured,
    }
    with HISTORY.open("a") as history:
        history.write(json.dumps(line) + "\n")


def _requirements(peer: str) -> list[str]:
    program = "blazefl_peer" if peer in interpreters.ROWS else peer
    file = PROGRAMS / f"{program}.txt"
    return file.read_text().split() if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description="The same training by others")
    parser.add_argument("--only", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--peers", nargs="*", help="programs; all by default")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"))
    parser.add_argument("--tfds-dir", help="folder of prepared data sets of images")
    options = parser.parse_args()
    print(environment())
    chosen = {name: _available(options.peers or PEERS[name]) for name in options.only}
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.npz"
            federations.write(WORKLOADS[name], file, options.tfds_dir)
            measured = compare(name, chosen[name], options.repeats, options.cache, file)
        table(name, measured)
        record(name, measured)
        _check_close(name, "accuracies", [own["accuracy"] for own in measured.values()], TOLERANCE)


def _available(peers: Sequence[str]) -> list[str]:
    """Returns the peers that can run; prints why others are skipped."""
    reasons = {peer: interpreters.missing_reason(peer) for peer in peers}
    for reason in filter(None, reasons.values()):
        print(reason)
    available = [peer for peer, reason in reasons.items() if reason is None]
    try:
        for peer in interpreters.ROWS.keys() & available:
            interpreters.find_interpreter(peer)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return available


def _check_close(name: str, kind: str, values: list[float], tolerance: float) -> None:
    print(f"{name}: {kind} {values}")
    if np.ptp(values) > tolerance:
        raise SystemExit(f"{name}: {kind} {values}: expected within {tolerance}.")


if __name__ == "__main__":
    main()
