"""A gRPC server around an engine; `engines.jax_engine` alone imports JAX, which vLLM's environment does not have."""
