"""Records how any script trains: what its processes do, without a change to the script."""
