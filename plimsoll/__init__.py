"""The door of the command `plimsoll`: looks at what is installed before anything is imported."""
