"""Releases counts from a budget's file until it refuses: ``python releasing.py BUDGET PUBLISHED``.

What got out is a line of PUBLISHED, written at once: the release's number, the mechanism's scale, and the value.
"""

import os
import random
import sys
import time

import numpy as np

from jaxacct import release


def publish(budget, published, scale):
    """Releases one count, and publishes it."""
    released = release.count(np.ones(100, bool), budget, scale=scale)
    line = f"{released.number} {scale!r} {released.value}\n".encode()
    descriptor = os.open(published, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)


def slowly(n, below=release.secrets.randbelow):
    """Draws slowly enough to be killed between payment and publication."""
    time.sleep(0.002)
    return below(n)


if __name__ == "__main__":
    release.secrets.randbelow = slowly
    budget = release.Budget(sys.argv[1])
    budget.read()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        try:
            publish(budget, sys.argv[2], random.choice((10.0, 12.5, 20.0)))
        except ValueError as refused:
            sys.exit(0 if "is refused" in str(refused) else 3)
        time.sleep(random.random() / 50)
