"""How fast whole optimizer steps are, under which conditions, and how sure that is."""
