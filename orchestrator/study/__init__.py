"""Studies: every trial of a sweep, kept by Optuna."""

from search_spaces.extras import require

require("optuna", "sqlalchemy")
