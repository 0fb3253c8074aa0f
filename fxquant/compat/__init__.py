"""Names of ``torch.ao.quantization`` with its behaviour, on the graphs and the integers of fxquant.

Replacing ``torch.ao.quantization`` by ``fxquant.compat`` in the imports of a program is what a user does;
``docs/migration.md`` has a row for each name. Nothing here imports ``torch.ao``, but its objects are taken as they are.
``import fxquant`` does not import this package.
"""
