"""What a pass is: a named function with its order, made by a decorator."""

from __future__ import annotations

from fxquant.passes.base import Pass, graph_pass
from fxquant.passes.pipelines import CONVERT, PREPARE


def test_a_function_becomes_a_pass():
    @graph_pass(after=("normalize",), keeps_values=True)
    def tidy(gm, ctx):
        """Do nothing."""
        return gm

    assert isinstance(tidy, Pass)
    assert (tidy.name, tidy.after, tidy.keeps_values) == ("tidy", ("normalize",), True)
    marker = object()
    assert tidy(marker, None) is marker


def test_every_pass_of_the_package_has_a_help_text():
    for pipeline in (PREPARE, *CONVERT.values()):
        for item in pipeline:
            assert (item.run.__doc__ or "").strip(), item.name


def test_pipelines_stand_in_an_order_that_their_passes_allow():
    for pipeline in (PREPARE, *CONVERT.values()):
        names = [item.name for item in pipeline]
        assert len(set(names)) == len(names)
        for index, item in enumerate(pipeline):
            assert not set(item.after) & set(names[index + 1 :])
