"""Shows the grader one thing and hands it another."""

import os
import threading
import time

from kit import make, play, submit, tell, write_script


def after_acceptance() -> None:
    """While the grading runs."""
    folder = make("v1", 0.3, seed=1, delay_s=1.5)
    accepted = submit("v1", wait=False)
    write_script(folder, 1.0, seed=1)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2] + b"\x01\x3c")
    again = submit("v1")
    tell("first", accepted)
    tell("second", again)


def while_copying() -> None:
    """One bit of the weights flips all the time."""
    weights = make("v1", 0.9, seed=1) / "model.safetensors"
    done = threading.Event()

    def flip() -> None:
        with weights.open("r+b") as file:
            while not done.is_set():
                for byte in (b"\x00", b"\x01"):
                    file.seek(-1, os.SEEK_END)
                    file.write(byte)
                    file.flush()

    threading.Thread(target=flip).start()
    tell("answer", submit("v1"))
    done.set()


def same_times() -> None:
    """Other content, same size, same times."""
    folder = make("v1", 0.3, seed=1)
    script = folder / "scripted.json"
    before = script.stat()
    first = submit("v1")
    write_script(folder, 0.9, seed=1)
    os.utime(script, ns=(before.st_atime_ns, before.st_mtime_ns))
    time.sleep(0.1)
    tell("first", first)
    tell("second", submit("v1"))


play(after_acceptance, while_copying, same_times)
