"""The scripts are programs, not tests."""

collect_ignore = ["scripts"]
