"""What a plan does to a model, applied from outside: the model does not know how it is split."""
