"""How many trials samplers need on surfaces that are measured to the last plan."""
