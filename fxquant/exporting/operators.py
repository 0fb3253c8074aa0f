"""Importing this module registers the operators that an explicit model is made of.

A file that ``torch.export.save`` wrote of one names them; ``torch.export.load`` must find them.
"""

from __future__ import annotations

from fxquant.exporting.decomposed import register

register()
