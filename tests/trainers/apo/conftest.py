from tests.trainers.toy_phase import scripted

__all__ = ["scripted"]
