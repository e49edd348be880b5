"""The arithmetic that all accountants share; nothing here knows of privacy.

* :mod:`.arithmetic` has units of roundoff; :mod:`.elementary` has the assumptions on a device's functions, and checks
  them.
* :mod:`.precision` has float64 by scope, numbers as text, and rounding to the safe side.
* :mod:`.programs` compiles eager calls, and decides where a program is lowered which arithmetic it is made of;
  :mod:`.float32` makes programs of float32 for devices without float64, of the functions of
  :mod:`.elementary_float32` and the sums of :mod:`.sums_float32`.
* :mod:`.batched_loops` has loops whose batches cost the sum of the lanes' work, and calls of one lane at a time.
* :mod:`.root_search` has the certified root searches: concrete, traced and superlinear.
* :mod:`.pytrees` converts what callers give to numbers of Python, registers dataclasses, and maps over the rows of
  stacked trees.
"""
