"""From files that clients send to what a model takes: decoding, preprocessing, places in the prompt.

Knows files and tensors, neither the bus nor the engine. `MediaProcessor.prepare` gives `PreparedMedia`.
"""

from omnistage_thinker.media.limits import MediaLimits
from omnistage_thinker.media.places import Placeholders, expand, template_messages
from omnistage_thinker.media.prepared import PreparedMedia
from omnistage_thinker.media.processor import MediaProcessor
from omnistage_thinker.media.videos import FrameRule

__all__ = [
    "FrameRule",
    "MediaLimits",
    "MediaProcessor",
    "Placeholders",
    "PreparedMedia",
    "expand",
    "template_messages",
]
