"""Code that several tests share: oracles, judges of brackets, commands, walks, pages as programs."""
