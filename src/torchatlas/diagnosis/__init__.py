"""What is wrong with a training step: findings with the line, the reason and the fix. One file per diagnosis."""

from torchatlas.diagnosis.call import doctor
from torchatlas.diagnosis.finding import Finding, Findings, Where
from torchatlas.diagnosis.visit import Visit

__all__ = ["Finding", "Findings", "Visit", "Where", "doctor"]
