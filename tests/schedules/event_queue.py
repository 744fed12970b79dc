"""Asynchronous rounds as a queue of events in plain Python, for comparison."""

import heapq
from collections import Counter
from typing import NamedTuple


class Task(NamedTuple):
    end: int
    number: int
    client: int
    start: int
    version: int
    is_complete: bool


class Availability:
    """Intervals ``[online, offline)`` in milliseconds, which do not repeat before the run ends."""

    def __init__(self, intervals):
        self.intervals = intervals

    def is_online(self, client, time):
        return any(start <= time < end for start, end in self.intervals[client])

    def next_online(self, client, time):
        times = [max(start, time) for start, end in self.intervals[client] if time < end]
        return min(times)

    def end(self, client, time, duration, policy):
        """Returns when a task ends that starts now, and whether it has a result."""
        if policy == "ignore":
            return time + duration, True
        for start, end in sorted(self.intervals[client]):
            if end <= time:
                continue
            time = max(time, start)
            if time + duration <= end:
                return time + duration, True
            if policy == "abort":
                return end, False
            duration -= end - time
        raise AssertionError("the intervals end before the run does")


def simulate(rounds, slots, buffer_size, select, durations, online, policy, max_staleness):
    """Returns the buffers, lists of ``(task, staleness)``, the time after each round, and its
    number of tasks whose results do not count.

    Args:
        rounds: Number of rounds.
        slots: Clients that train at the same time.
        buffer_size: Results of a round.
        select: ``select(round, available) -> candidates``.
        durations: Milliseconds by number and client.
        online: `Availability`.
        policy: What becomes of tasks of clients that go offline.
        max_staleness: Largest staleness that counts.
    """
    time, number, queue, buffers, times, lost = 0, 0, [], [], [], []
    for round in range(rounds):
        busy = {task.client for task in queue}
        clients = range(len(durations[0]))
        candidates = select(round, [c not in busy and online.is_online(c, time) for c in clients])
        uses, buffer = Counter(), []
        lost.append(0)
        while len(buffer) < buffer_size:
            busy = {task.client for task in queue}
            idle = [c for c in dict.fromkeys(candidates) if c not in busy]
            if not queue or queue[0].end > time:  # Results of this moment come first.
                ready = [c for c in idle if online.is_online(c, time)]
                ready.sort(key=lambda c: uses[c])
                for client in ready[: slots - len(queue)]:
                    end, complete = online.end(client, time, durations[number][client], policy)
                    heapq.heappush(queue, Task(end, number, client, time, round, complete))
                    number += 1
                    uses[client] += 1
                    idle.remove(client)
            wake = None
            if idle and len(queue) < slots:
                wake = min(online.next_online(client, time) for client in idle)
            if wake is not None and (not queue or wake < queue[0].end):
                time = wake
                continue
            task = heapq.heappop(queue)
            time = task.end
            if task.is_complete and round - task.version <= max_staleness:
                buffer.append((task, round - task.version))
            else:
                lost[-1] += 1
        buffers.append(buffer)
        times.append(time)
    return buffers, times, lost
