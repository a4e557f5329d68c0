"""Attention over packed rows, one file for each way of computing it; `model.packed_attention` chooses."""

ATTENTION_OUTPUT = "attention_output"
"""`jax.ad_checkpoint` name of what a kernel keeps for its backward pass beside q, k and v: output, softmax statistics.

With them saved (`jax.checkpoint_policies.save_only_these_names`), the backward pass does not run the forward again.
"""
