"""Presets: configurations of well-known models, and facts about them."""
