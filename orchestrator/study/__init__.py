"""Studies: every trial of a sweep, kept by Optuna."""

from search_spaces.errors import require

require("optuna", "sqlalchemy")
