"""Rules: named reasons that make a plan illegal, one function each."""
