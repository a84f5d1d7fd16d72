"""Qwen3.x written once against the op protocol: weights, state, text decoder."""
