"""What ranks compare before they share work, as short texts: data types, and digests of models and of data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fxquant.kernels.raw_bytes import raw_bytes


def module_facts(gm: GraphModule, name: str) -> dict[str, str]:
    """Return what ranks have to have alike of a model, which messages call by ``name``."""
    state = {key: value for key, value in sorted(gm.state_dict().items()) if isinstance(value, Tensor)}
    shapes = [f"{key} {list(value.shape)}" for key, value in state.items()]
    return {
        name: digest_of_text(str(gm.graph), *shapes),
        f"data type of the {name}": ", ".join(sorted({str(value.dtype) for value in state.values()})) or "none",
        f"state of the {name}": digest(state),
    }


def data_facts(first: Any) -> dict[str, str]:
    """Return what ranks have to have alike of the first batch; empty texts where there is none."""
    if first is None:
        return {"data": "", "data type of the first batch": "", "first batch": ""}
    tensors = [leaf for leaf in pytree.tree_leaves(first) if isinstance(leaf, Tensor)]
    kinds = ", ".join(f"{leaf.dtype} {list(leaf.shape)}" for leaf in tensors)
    return {
        "data": "some",
        "data type of the first batch": kinds or "no tensor",
        "first batch": digest({str(index): leaf for index, leaf in enumerate(tensors)}),
    }


def batch_digest(batch: Any) -> int:
    """Return 64 bits of a SHA-256 over the tensors, numbers and texts of a batch, as a signed number."""
    leaves = pytree.tree_leaves(batch)
    tensors = {str(index): leaf for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
    kinds = [f"{leaf.dtype} {list(leaf.shape)}" for leaf in tensors.values()]
    others = [repr(leaf) for leaf in leaves if isinstance(leaf, (bool, int, float, str))]
    return int(digest_of_text(digest(tensors), *kinds, *others), 16) - 2**63


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return 16 hexadecimal digits of a SHA-256 over names and bytes."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(name.encode())
        found.update(raw_bytes(value.cpu()).numpy().data)
    return found.hexdigest()[:16]


def digest_of_text(*parts: str) -> str:
    """Return 16 hexadecimal digits of a SHA-256 over lines, without the addresses that differ between processes."""
    return hashlib.sha256(without_addresses("\n".join(parts)).encode()).hexdigest()[:16]


def without_addresses(text: str) -> str:
    """Return a ``repr`` without addresses in memory, which differ from process to process."""
    return re.sub("(?: at )?0x[0-9a-fA-F]+", "", text)
