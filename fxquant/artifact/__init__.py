"""One file for a model: tensors, its graph as JSON, and names from closed tables. No code is in it, and none is run."""

from fxquant.artifact.format import LoadLimits
from fxquant.artifact.inspect import ArtifactInfo, inspect_artifact
from fxquant.artifact.load import load
from fxquant.artifact.save import save

__all__ = ["ArtifactInfo", "LoadLimits", "inspect_artifact", "load", "save"]
