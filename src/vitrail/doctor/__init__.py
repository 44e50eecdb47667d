"""`vitrail doctor`: what may be wrong with a model, its images and its labels, one line per check."""

from vitrail.doctor.examine import Diagnosis, diagnose
from vitrail.doctor.findings import Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
