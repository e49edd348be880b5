"""The command ``jaxacct``, and ``python -m jaxacct``: nothing is imported before Ctrl-C is looked after."""

import os
import signal
import sys


def console() -> None:
    """Runs the command line, and ends the process."""
    try:
        from jaxacct.cli import main

        code = main()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left to do is to end
    except KeyboardInterrupt:
        os.write(2, b"jaxacct: interrupted.\n")
        code = 130
    if code == 130:
        os._exit(code)  # threads and half made programs are not waited for: what is on the disk is whole
    sys.exit(code)


if __name__ == "__main__":
    console()
