"""What the talkers of the Qwen3 families share: frames of codec tokens from embeddings, on the AR core."""
