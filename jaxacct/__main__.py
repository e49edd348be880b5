"""The command ``jaxacct``, and ``python -m jaxacct``, which handles Ctrl-C before it imports anything."""

import os
import signal
import sys


def console() -> None:
    """Runs the command line, and ends the process."""
    try:
        from jaxacct.cli import main

        code = main()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process ends now in any case
    except KeyboardInterrupt:
        os.write(2, b"jaxacct: interrupted.\n")
        code = 130
    if code == 130:
        os._exit(code)  # without a wait for threads and compilers: files on the disk are complete or not there
    sys.exit(code)


if __name__ == "__main__":
    console()
