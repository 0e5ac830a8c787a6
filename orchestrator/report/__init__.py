"""Reports: everything that people read, made here and at the end."""
