"""Rules: named reasons for which a plan is illegal, each one function."""
