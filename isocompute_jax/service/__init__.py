"""The sampler service: a gRPC server around an engine (vLLM or JAX), and the fleet of them that a learner samples from.

Nothing here is imported with the package: the server side runs where JAX is not installed (vLLM's environment), the
client side where vLLM is not.
"""
