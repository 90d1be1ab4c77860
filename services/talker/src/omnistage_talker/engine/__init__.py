"""The talker's engines: which text is spoken when, and how its frames are cut.

`omnistage_talker.engine.frames` is imported by itself, where it is used: it needs torch.
"""

from omnistage_talker.engine.clauses import ClauseLimits, ClauseSplitter
from omnistage_talker.engine.engine import SpeechConfig, SpeechEngine, SpokenFrames
from omnistage_talker.engine.groups import GroupSizes
from omnistage_talker.engine.interface import Speaker

__all__ = ["ClauseLimits", "ClauseSplitter", "GroupSizes", "Speaker", "SpeechConfig", "SpeechEngine", "SpokenFrames"]
