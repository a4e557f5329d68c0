"""The protocol: sampler.proto, its generated stubs, and what stands between its messages and this package's records."""
