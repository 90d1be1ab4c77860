"""Qwen3-Omni's thinker: text, sound and pictures in; tokens, and what the talker is fed with, out."""
