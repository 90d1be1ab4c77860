"""The codec's engines, told without loading any of them: this module imports no model library."""

from __future__ import annotations

ENGINES = ("hibari", "qwen3_tts")
"""What `engine` may be in models.yaml."""
