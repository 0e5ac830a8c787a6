"""What plans are expected to take: memory and time, from a footprint and a machine."""
