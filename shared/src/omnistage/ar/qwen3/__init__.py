"""The Qwen3 decoders, dense and with experts, in a checkpoint's published layout; shared by thinker and talker."""
