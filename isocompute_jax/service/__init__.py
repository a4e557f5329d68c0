"""The sampler service: a gRPC server around an engine (vLLM or JAX), and the fleet of them that a learner samples from.

`proto` is the protocol; `weights` takes weights from one side to the other; `client` is the learner's side; `server`
the other one. Nothing is imported with the package: the server runs where JAX is not installed (vLLM's environment),
the client where vLLM is not.
"""
