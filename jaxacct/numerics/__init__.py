"""The arithmetic that all accountants share; nothing here knows of privacy.

* :mod:`.arithmetic` has units of roundoff, :mod:`.elementary` what is assumed of a device's functions, and checks it.
* :mod:`.precision` has float64 by scope, and rounding outward where arithmetics meet.
* :mod:`.programs` compiles what is called eagerly; :mod:`.programs` decides where it is lowered which arithmetic a
  program is made of, and :mod:`.float_pairs` is that of devices without float64.
* :mod:`.by_work` has loops whose batches cost the sum of the lanes' work, and calls of one lane at a time.
* :mod:`.pytrees` registers dataclasses, and maps over the rows of what is stacked.
"""
