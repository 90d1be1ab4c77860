"""Parity: the same weights and inputs give the same numbers as the reference implementation.

A service offers `python -m omnistage_SERVICE parity FOLDER`, made by `run_checks` from its checks; the launcher joins
their tables. A folder in the golden layout holds, for each family, checkpoints and `fixtures/*.safetensors`.
"""

from omnistage.parity.comparison import Comparison, Tolerance, compare
from omnistage.parity.folders import family_folders
from omnistage.parity.service import Check, run_checks
from omnistage.parity.table import table_lines

__all__ = ["Check", "Comparison", "Tolerance", "compare", "family_folders", "run_checks", "table_lines"]
