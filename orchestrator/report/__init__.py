"""Reports: all text, tables, charts and pages for people, made from values at the end."""
