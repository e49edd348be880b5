"""The benchmark suite: the same questions put to every library, each in its own process, on equal cores."""
