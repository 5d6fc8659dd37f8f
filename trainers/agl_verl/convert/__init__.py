"""Conversion of a batch's forest to the rows and tensors that verl trains on."""

from agl_verl.convert._images import Shown
from agl_verl.convert._rows import Level, Overlong, Row, Rows, rows_of
from agl_verl.convert._tensors import tensors_of

__all__ = ["Level", "Overlong", "Row", "Rows", "Shown", "rows_of", "tensors_of"]
