"""The command `plimsoll`, which checks the installed packages before it imports any."""
