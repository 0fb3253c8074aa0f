"""Commands have this in common: packages that some of them need, and a word on random numbers."""

from __future__ import annotations

import importlib.util

from fxquant.errors import SampleError


def require(*modules: str, extra: str = "examples") -> None:
    """Raise an error with a hint where a package of an optional extra is missing.

    Raises:
        SampleError: names what is missing and how to install it.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SampleError(
            "this needs packages that fxquant itself does without",
            got=f"no {', '.join(missing)}",
            hint=f"pip install 'fxquant[{extra}]'",
        )


RANDOM = (
    "measured on random inputs (and random weights, unless your function loads some):\n"
    "    ranges and noise are not those of a trained model on its data"
)
"""What to print under figures that were measured so."""

RANDOM_INPUTS = (
    "measured on random inputs: ranges and noise are not those of the model's data (--data names a folder of images,\n"
    "    or a function that yields batches)"
)
"""The same, where the weights are the user's."""

RANDOM_WEIGHTS = {
    "random": "the weights are random: noise and accuracy say little (--weights FILE loads others)",
    "unknown": "the weights are those that the function made, random if it loads none (--weights FILE loads others)",
    "given": "",
}
"""Where the weights come from -> what to print where the data are the user's."""
