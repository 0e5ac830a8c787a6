"""A witness of training: rides along in any script's processes, and writes down what they do."""
