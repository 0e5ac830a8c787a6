"""Models: facts about a model before it is built, and the built one."""
