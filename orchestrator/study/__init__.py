"""Studies: all trials of a sweep, stored by Optuna."""

from search_spaces.errors import require

require("optuna", "sqlalchemy")
