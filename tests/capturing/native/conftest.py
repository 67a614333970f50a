"""The native recorder, for all tests of this folder."""

from native_build import built, native

__all__ = ["built", "native"]
