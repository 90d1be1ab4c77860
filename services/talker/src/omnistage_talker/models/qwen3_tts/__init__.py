"""The talker family Qwen3-TTS 12 Hz (0.6B and 1.7B; CustomVoice, VoiceDesign, Base): text to frames of 16 codes."""
