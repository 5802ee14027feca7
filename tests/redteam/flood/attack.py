"""As much as the relay carries, while a second process looks at how long /health takes."""

import statistics
import threading
import time

from kit import CASE, make, play, request, submit, tell

SIZES = {"modest": (200, 2), "heavy": (2000, 20)}


def flooded() -> None:
    requests, bodies = SIZES[CASE]
    make("v1", 0.6, seed=1)
    tell("answer", submit("v1"))
    statuses: dict[int, int] = {}
    lock = threading.Lock()

    def note(status: int) -> None:
        with lock:
            statuses[status] = statuses.get(status, 0) + 1

    def submitting(count: int) -> None:
        for _ in range(count):
            note(request("POST", "/submit", {"model_path": "output/v1", "wait": False})[0])

    def shouting(count: int) -> None:
        body = b"x" * (50 << 20)
        for _ in range(count):
            note(request("POST", "/submit", body)[0])

    threads = [threading.Thread(target=submitting, args=(requests // 8,)) for _ in range(8)]
    threads += [threading.Thread(target=shouting, args=(bodies // 2,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    waits = []
    while any(thread.is_alive() for thread in threads):
        begun = time.monotonic()
        assert request("GET", "/health")[0] == 200
        waits.append(time.monotonic() - begun)
        time.sleep(0.01)
    tell("statuses", statuses)
    tell("health", {"n": len(waits), "p99": statistics.quantiles(waits, n=100)[98], "max": max(waits)})


def modest() -> None:
    flooded()


def heavy() -> None:
    flooded()


play(modest, heavy)
