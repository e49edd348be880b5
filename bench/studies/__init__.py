"""Measurements of one question each: brackets, devices, trainings; ``python -m bench NAME --help`` explains."""
