"""Sends one signal at the k-th call or return of the command's own code, for every k.

``START NUMBER``: how the work starts, and the name of the signal. Prints a line per process: the
event, the exit status and what it wrote to stderr.
"""

import contextlib
import itertools
import json
import os
import signal
import sys

from fedjax_fair.app import cli
from fedjax_fair.app.terminal import interruptions

FILES = {cli.__file__, interruptions.__file__, contextlib.__file__, signal.__file__}


def run_program(start, number, k, place):
    """Runs ``program`` with a signal at event ``k``, whose description goes to ``place``."""
    events = itertools.count(1)

    def send(frame, event, argument):
        if frame.f_code.co_filename in FILES and next(events) == k:
            os.write(place, f"{event} {frame.f_code.co_name}, {frame.f_lineno}".encode())
            os.kill(os.getpid(), number)

    def dispatch(*arguments):
        try:
            if start == "is interrupted":
                os.kill(os.getpid(), signal.SIGINT)
            elif start == "is terminated":
                raise interruptions.Terminated(signal.SIGTERM)
            elif start == "fails":
                raise ValueError("wrong")
        finally:
            sys.setprofile(send)

    sys.argv = ["fedjax-fair"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in the background.
    cli._prepare = lambda words: (dispatch, words)
    cli.program()


def main():
    start, number = sys.argv[1], getattr(signal, sys.argv[2])
    for k in itertools.count(1):
        pipes = {name: os.pipe() for name in ("errors", "place")}
        process = os.fork()
        if process == 0:
            os.dup2(pipes["errors"][1], 2)
            run_program(start, number, k, pipes["place"][1])
        texts = []
        for reader, writer in pipes.values():
            os.close(writer)
            with open(reader) as file:
                texts.append(file.read())
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if not texts[1]:
            break
        print(json.dumps([texts[1], status, texts[0]]))


if __name__ == "__main__":
    main()
