"""Measurements beside one other library each, which has to be installed: ``pip install -e ".[peers]"``."""
