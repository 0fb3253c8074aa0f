"""The kinds of models that a file may hold."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from fxquant.artifact.learned_rounding import with_known_integers
from fxquant.errors import ArtifactError
from fxquant.graph.module import NamedGraphModule, get_metadata
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.quantizer import Quantizer
from fxquant.training.trained import quantizer_of


def kind_of(model: Any) -> str:
    """Tell which kind of model this is.

    Raises:
        ArtifactError: it is none that a file can hold.
    """
    if isinstance(model, Quantizer) or isinstance(get_metadata(model, "preparation"), Quantizer):
        return "prepared"
    if isinstance(model, NamedGraphModule):
        form = get_metadata(model, "quant_form")
        if get_metadata(model, "quant_plan") is None or form is not None:
            return form or "float"
    raise ArtifactError(
        "save takes a model that convert or prepare gave",
        got=type(model).__name__,
        expected="the result of fxq.convert, fxq.quantize, fxq.prepare, fxq.prepare_qat or fxq.load",
        hint="fxq.save(fxq.convert(prepared), path)",
    )


def written_form(model: Any) -> tuple[str, PreparedModel | None, GraphModule]:
    """Return the kind of a model, the Quantizer if it is prepared, and the graph that is written.

    Raises:
        ArtifactError: it is none that a file can hold.
    """
    kind = kind_of(model)
    if kind == "prepared":
        prepared = prepared_of(model)
        return kind, prepared, prepared.graph_module
    return kind, None, with_known_integers(model)


def prepared_of(model: Any) -> PreparedModel:
    """Return the Quantizer itself; of a model in training, one that converts as the model does now."""
    return model if isinstance(model, PreparedModel) else quantizer_of(model)
