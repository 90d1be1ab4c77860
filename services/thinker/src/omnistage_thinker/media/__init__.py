"""From files that clients send to what a model takes: decoding, preprocessing, places in the prompt.

Knows files and tensors, neither the bus nor the engine. `MediaProcessor.prepare` gives `PreparedMedia`.
"""

from omnistage_thinker.media.prepared import PreparedMedia

__all__ = ["PreparedMedia"]
