"""What the user asks: a sweep specification, loaded from YAML or refused with every fault."""

from search_spaces.spec.load import load_spec, parse_spec, spec_to_yaml, study_name, with_budget
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.template import commented_template

__all__ = [
    "SweepSpec",
    "commented_template",
    "load_spec",
    "parse_spec",
    "spec_to_yaml",
    "study_name",
    "with_budget",
]
