"""Random input for the command line and the specification."""
