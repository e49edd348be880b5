"""JAX-accelerated accounting of differential privacy, and a Flax trainer that asks it for its budget."""
