"""A daemon that adopts its own orphans, so that they never come to the supervisor while it lives."""

import ctypes
import os
import signal
import time
from pathlib import Path

if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0 and os.fork() == 0:
        os.setsid()
        Path("ready").write_text("ready")
    time.sleep(1000)
time.sleep(1000)
