"""Qwen3-Omni's talker: the thinker's rows in, frames of codec tokens out."""
