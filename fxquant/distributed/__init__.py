"""Several processes share the work of one call, and end with the same bits as one process."""

from fxquant.distributed.ranks import Ranks
from fxquant.distributed.sharing import active_ranks, share_work

__all__ = ["Ranks", "active_ranks", "share_work"]
