"""The talker's engine: which text is spoken when, and how its frames are cut."""

from omnistage_talker.engine.clauses import ClauseLimits, ClauseSplitter
from omnistage_talker.engine.engine import SpeechConfig, SpeechEngine, SpokenFrames
from omnistage_talker.engine.groups import GroupSizes

__all__ = ["ClauseLimits", "ClauseSplitter", "GroupSizes", "SpeechConfig", "SpeechEngine", "SpokenFrames"]
