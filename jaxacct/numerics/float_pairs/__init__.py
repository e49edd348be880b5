"""Real numbers for devices without float64: pairs of float32, with proofs, and programs interpreted in them."""
