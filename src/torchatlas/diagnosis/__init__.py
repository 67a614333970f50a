"""What is wrong with a training step: findings with the line, the reason and the fix.

doctor.py and visit.py are where it starts and ends, events.py what a diagnosis is told, faults/ the diagnoses, and
findings.py what comes out.
"""

from torchatlas.diagnosis.doctor import doctor
from torchatlas.diagnosis.findings import Finding, Findings, Where
from torchatlas.diagnosis.visit import Visit

__all__ = ["Finding", "Findings", "Visit", "Where", "doctor"]
