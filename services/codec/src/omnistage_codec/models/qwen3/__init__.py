"""What the codecs of the Qwen3 families share: weights, layers, streams of codes, the network that makes samples."""
