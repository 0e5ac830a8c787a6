"""Who searches a surface."""
