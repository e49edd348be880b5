"""Measurements that take too long for the test suite; each module is a script, run from the repository's root."""
