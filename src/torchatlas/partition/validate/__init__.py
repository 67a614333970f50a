"""Models by name -> whether their partitions are right: checks that can fail, and figures that others published."""

from torchatlas.partition.validate.validation import (
    FRONT_ENDS,
    ModelValidation,
    PartitionValidation,
    ValidationReport,
    validate,
    validate_model,
)

__all__ = ["FRONT_ENDS", "ModelValidation", "PartitionValidation", "ValidationReport", "validate", "validate_model"]
