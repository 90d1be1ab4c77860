"""The thinker's engines: conversations in, text out."""

from omnistage_thinker.engine.text import Answer, TextEngine, TextEngineSettings, TextSummary
from omnistage_thinker.engine.transcript import TextPiece

__all__ = ["Answer", "TextEngine", "TextEngineSettings", "TextPiece", "TextSummary"]
