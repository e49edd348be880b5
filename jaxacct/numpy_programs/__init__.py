"""Programs that NumPy runs, so that a first answer waits for no compiler.

:mod:`.translate` makes a list of NumPy's :mod:`.operations` of what JAX has traced; :mod:`.code` is such a list.
"""
