"""Weights from the learner's GPUs to vLLM's by NCCL: packed layer by layer, broadcast to each server by itself."""
