"""Code that applies settings to a model with torch alone; exported scripts contain its text."""
