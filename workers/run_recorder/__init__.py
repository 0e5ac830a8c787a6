"""Records how an unmodified script trains: wrappers, steps, losses and failures."""
