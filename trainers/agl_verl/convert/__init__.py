"""Conversion of a batch's forest to the rows and tensors that verl trains on."""

from agl_verl.convert._images import Shown
from agl_verl.convert._rows import Level, Overlong, TrainingRow, TrainingRows, rows_of
from agl_verl.convert._tensors import tensors_of

__all__ = ["Level", "Overlong", "Shown", "TrainingRow", "TrainingRows", "rows_of", "tensors_of"]
