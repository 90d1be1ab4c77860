"""OpenAI's HTTP shapes. Nothing of the contracts is known here."""
