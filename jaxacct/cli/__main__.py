"""Lets ``python -m jaxacct.cli`` stand in for the installed command."""

import sys

from jaxacct.cli import main

sys.exit(main())
