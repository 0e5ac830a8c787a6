"""Files that are written safely, and secrets that are taken out of texts."""
