"""Two ranks share work: the bits are those of one process, and what goes wrong in one of them is told by both."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import set_state_dict
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fxquant as fxq
from fxquant.calibration import summed_counts
from fxquant.calibration.batch_records import BatchRecords
from fxquant.calibration.channel_extremes import ChannelExtremes, Extremes
from fxquant.calibration.recorders import ChannelRecorder, add_counts, recorder_of, replayed, rows_of
from fxquant.distributed.facts import batch_digest, without_addresses
from fxquant.distributed.processes import Process
from fxquant.distributed.ranks import Ranks
from fxquant.distributed.shares import DealtBatches
from fxquant.errors import CalibrationError, InputError
from fxquant.quantizer import calibrate_in_ranks as calibrating
from fxquant.quantizer import rank_files
from fxquant.quantizer.calibrate_in_ranks import calibrate_in_ranks
from fxquant.training.trained import quantizer_of

SOURCE = Path(__file__).parent / "stories.py"
SPEC: Any = importlib.util.spec_from_file_location("stories", SOURCE)
stories = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(stories)


Pair = tuple[list[dict[str, Any]], Path]
"""What each of two ranks came to, and their folder."""


@pytest.fixture(scope="module")
def pair(fresh: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The last story ends the second rank."""
    return told(fresh, tmp_path_factory, [0, -9], *stories.SHARED, "training", "faults")


@pytest.fixture(scope="module")
def pair_that_learns(fresh: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return told(fresh, tmp_path_factory, [0, 0], "reconstructions", "learning")


def told(fresh: Any, temporary: pytest.TempPathFactory, expected: list[int], *names: str) -> Pair:
    folder = temporary.mktemp("ranks")
    codes, logs = fresh.ranks(SOURCE, folder, stories.WORLD, *names)
    assert codes == expected, "\n".join(logs)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(stories.WORLD)], folder


def with_its_pair(**stories_of_pairs: Sequence[str]) -> pytest.MarkDecorator:
    """Parameters of a test: a fixture, and a story that its ranks told; what learns takes long."""
    return pytest.mark.parametrize(
        ("ranks", "story"),
        [
            pytest.param(name, story, id=story, marks=pytest.mark.slow if name == "pair_that_learns" else ())
            for name, several in stories_of_pairs.items()
            for story in several
        ],
    )


TRAINED = with_its_pair(pair=["training"], pair_that_learns=["learning"])


pytestmark = pytest.mark.filterwarnings("ignore::fxquant.FxQuantWarning")


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Places where two results differ in a bit."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{path}: {sorted(map(str, one.keys() ^ other.keys()))}"]
        return [found for key in one for found in differences(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, (list, tuple)):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for index, (a, b) in pairs for found in differences(a, b, f"{path}/{index}")]
    if isinstance(one, Tensor):
        same = one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
        return [] if same else [path]
    return [] if one == other or one != one else [path]


@with_its_pair(pair=stories.SHARED, pair_that_learns=["reconstructions"])
def test_each_rank_ends_with_the_bits_of_one_process(request, ranks, story):
    first, second = (found[story] for found in request.getfixturevalue(ranks)[0])
    assert differences(first, second) == []
    assert differences(getattr(stories, story)(0), first) == []


@pytest.fixture
def faults(pair) -> dict[str, Any]:
    return pair[0][0]["faults"]


EXPECTED = {
    "no data": "rank 1 has no data",
    "data type": "rank 1 has another data type of the first batch than the other ranks.*torch.float64",
    "other data": "rank 1 has another first batch than the other ranks",
    "fewer batches": "rank 1 has another number of batches than the other ranks.*got: +2.*expected: 3",
    "weights": "rank 1 has another state of the model than the other ranks",
    "model": "rank 1 has another model than the other ranks",
    "data type of the model": "rank 1 has another data type of the model than the other ranks.*torch.float64",
    "batch": "rank 1 does not go on.*rank 1: InputError: calibration batch 1 is of the wrong kind",
    "until stable": "InputError: this calibration cannot be shared among ranks.*until_stable",
    "version": "rank 1 has another version of fxquant than the other ranks.*0.0.9",
    "another step": "rank 1 does not go on.*rank 1: (it is at another step|CalibrationError)",
    "hangs": "rank 1 does not go on.*no answer for 2 s",
    "other data later": "rank 1 does not go on.*rank 1: InputError: this batch is another one than",
    "hangs in a sum": "rank 1 does not go on.*a sum.*no answer for 2 s",
    "fails in a sum": "rank 1 does not go on.*a sum.*rank 1: InputError: no gradient",
    "dies": "rank 1 does not go on.*rank 1: its process [0-9]+ has ended.*keeps what each rank has observed",
}


@pytest.mark.parametrize("fault", EXPECTED)
def test_one_error_names_the_rank_and_the_cause(faults, fault):
    text = faults[fault]
    assert re.search(EXPECTED[fault], text, re.DOTALL), text
    assert text.startswith("InputError" if fault == "until stable" else "RankError"), text


def test_a_rank_that_hangs_is_not_waited_for(faults):
    assert faults["seconds"] < 4 + 3 * 2


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The batches that run from here on."""
    found: list[Tensor] = []
    usual = calibrating.run_float_graph

    def run(prepared: Any, observers: Any, args: Any, kwargs: Any) -> Any:
        found.append(args[0])
        return usual(prepared, observers, args, kwargs)

    monkeypatch.setattr(calibrating, "run_float_graph", run)
    return found


def test_a_later_run_goes_on_with_what_was_observed(pair, runs):
    """In one process: three of five batches were observed by the rank that lived, and do not run again."""
    kept = pair[1] / "kept"
    assert len(list(kept.glob("*.safetensors"))) == 1
    batches = stories.images(5)
    with fxq.share_work(checkpoint=kept):
        found = fxq.calibrate(stories.prepared_by_default(), batches, progress=False)
    assert [index for index, each in enumerate(batches) if any(each is one for one in runs)] == [1, 3]
    wanted = fxq.calibrate(stories.prepared_by_default(), stories.images(5), progress=False)
    assert differences(wanted.state_dict(), found.state_dict()) == []
    assert list(kept.iterdir()) == []


def test_what_one_process_has_observed_is_taken_up_by_two(faults):
    assert differences(stories.calibrated("histogram", stories.images(5)), faults["from one"]) == []


def test_data_that_was_refused_harms_no_record(faults):
    assert faults["the same data later"] == "none"


@TRAINED
def test_sharded_parameters_train_as_those_of_ddp(request, ranks, story):
    """FSDP2 and DDP: one batch a step, gradients of two batches, activations that are computed again, bfloat16."""
    results = [result[story] for result in request.getfixturevalue(ranks)[0]]
    for found in results:
        for kind in ("1", "2", "again"):
            assert found[f"fsdp {kind}"] == pytest.approx(found[f"ddp {kind}"], rel=1e-5)
        assert found["mixed"] == pytest.approx(found["ddp 1"], rel=0.25)
        assert found["mixed"] != pytest.approx(found["ddp 1"], rel=1e-4)
        assert found["convert"].startswith("the parameters of this model are sharded among processes")
    first, second = (found["fsdp 1"] for found in results)
    assert first != second  # each has its own batches


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # as no_dist=True says
@TRAINED
def test_a_sharded_run_goes_on_in_another_number_of_ranks(request, ranks, story):
    """In one process, with weights, steps and momentum of a checkpoint of two."""
    results, folder = request.getfixturevalue(ranks)
    full, name = results[0][story], {"training": "", "learning": "learned"}[story]
    qat = stories.qat_of(name)
    optimizer = stories.optimizer_of(qat)
    model_state, optimizer_state = stories.get_state_dict(qat, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    stories.dcp.load(state, checkpoint_id=folder / f"qat{name}", no_dist=True)
    set_state_dict(qat, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    own = qat.state_dict()
    parameters = dict(qat.named_parameters())
    assert differences({key: full["state"][key] for key in parameters}, {key: own[key] for key in parameters}) == []
    for key, momentum in full["momentum"].items():
        assert torch.equal(momentum["momentum_buffer"], optimizer.state[parameters[key]]["momentum_buffer"]), key
    assert all(math.isfinite(loss) for loss in stories.steps(qat, 0, optimizer))
    assert fxq.convert(qat)(stories.images(1)[0]).isfinite().all()


def test_without_a_group_calls_are_those_of_one_process():
    with fxq.share_work() as ranks:
        assert (ranks.rank, ranks.size) == (0, 1)
        found = fxq.calibrate(stories.prepared_by_default(), stories.images(2), progress=False)
    wanted = fxq.calibrate(stories.prepared_by_default(), stories.images(2), progress=False)
    assert differences(wanted.state_dict(), found.state_dict()) == []
    with pytest.raises(InputError, match="timeout is no time"), fxq.share_work(timeout=0):
        pass


@pytest.mark.parametrize("name", stories.CHANNELS)
def test_a_record_that_is_replayed_gives_the_bits_of_the_observer(name):
    live, replayed_to = stories.CHANNELS[name](), stories.CHANNELS[name]()
    records = BatchRecords()
    recorder: Any = recorder_of(replayed_to, "x")
    batches = [each * (10 - index) for index, each in enumerate(stories.images(6))]
    for index, batch in enumerate(batches):
        live(batch)
        recorder(batch)
        recorder.keep(records, "x", index, 0)
    records = BatchRecords.unpacked(records.packed())
    if not records.histograms:
        for index in range(len(batches)):
            replayed(records, {"x": replayed_to})(index)
        assert differences(live.state_dict(), replayed_to.state_dict()) == []
    else:
        counts, low, high = records.histograms[0, "x"]
        assert torch.equal(counts, live.counts)
        assert torch.equal(torch.stack([low, high]), torch.stack([live.min_val, live.max_val]))


@pytest.mark.parametrize("message", [1, 1 << 26])
def test_counts_of_many_observers_are_added_at_once(monkeypatch, message):
    """Of several numbers of bins, of channels, and of one that has seen nothing before."""
    monkeypatch.setattr(summed_counts, "MESSAGE", message)
    kinds: dict[str, Any] = {
        **{f"{bins} {place}": {"bins": bins} for bins in (64, 2048) for place in range(2)},
        "channels": {"bins": 64, "ch_axis": 1},
    }
    live, added = ({name: fxq.HistogramObserver(**kind) for name, kind in kinds.items()} for _ in range(2))
    own: dict[tuple[int, str], Any] = {}
    for stretch, batch in enumerate(stories.images(4)):
        for place, (name, kind) in enumerate(kinds.items()):
            if (stretch, name) == (0, "64 1"):
                continue
            x = batch * (1 + place)
            live[name](x)
            alone = fxq.HistogramObserver(**kind)
            alone(x)
            own[stretch, name] = rows_of(alone)
    bins = {name: kind["bins"] for name, kind in kinds.items()}
    total = summed_counts.summed_counts(own, bins.__getitem__, Ranks(None, 1.0, None), "test")
    for stretch in range(4):
        counted = [(name, total[stretch, name]) for name in kinds if (stretch, name) in total]
        add_counts([(added[name], each, (3,) if name == "channels" else ()) for name, each in counted])
    for name, observer in live.items():
        assert differences(rows_of(observer), rows_of(added[name]), name) == []


def test_extremes_of_channels_do_not_depend_on_who_looked():
    """Of a channel that was constant in one batch alone, of one that always is, and of one with NaN."""
    for live, other in ((ChannelExtremes(-3), ChannelExtremes(-3)), (Extremes(), Extremes())):
        recorder, records = ChannelRecorder(other), BatchRecords()
        for index in range(4):
            x = torch.randn(2, 4, 200, 200, generator=torch.Generator().manual_seed(index))
            x[:, 0] = 1
            x[:, 1] = index
            x[:, 2] = x[:, 2] if index == 2 else 0
            x[0, 3, 0, 0] = torch.nan
            live(x)
            live.keep()
            recorder(x)
            recorder.keep(records, "x", index, 0)
        for index in range(4):
            other.take_alone(*BatchRecords.unpacked(records.packed()).values["x"][index])
        assert differences(live.state_dict(), other.state_dict()) == []


def test_observers_of_the_users_own_are_refused():
    class Own(fxq.MinMaxObserver):
        def update(self, x: Tensor) -> None:
            super().update(x * 2)

    with pytest.raises(InputError, match="Own cannot measure in several ranks"):
        recorder_of(Own(), "x")


class OneRank:
    rank, size = 0, 1


class TwoRanks:
    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2


class Numbers(IterableDataset):
    """Is read from its beginning alone."""

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(5)


class Tenfold(DataLoader):
    """Yields other items than its data set has."""

    def __iter__(self) -> Any:
        return (10 * each for each in super().__iter__())


def number_of(items: Any) -> int:
    return int(items[0])


@pytest.mark.parametrize(
    "data",
    [
        list(range(5)),
        DataLoader(Numbers(), batch_size=1, collate_fn=number_of),
        (each for each in range(5)),
        DataLoader([torch.tensor(each) for each in range(5)], batch_size=1, collate_fn=lambda items: int(items[0])),
    ],
    ids=["list", "loader of an iterable data set", "generator", "loader"],
)
def test_batches_are_dealt_in_turn(data):
    items = list(data) if not isinstance(data, (list, DataLoader)) else data
    for done, wanted, compared in ((set(), [[0, 2, 4], [1, 3]], [[], []]), ({0, 2}, [[1, 4], [3]], [[0], [2]])):
        for rank in range(2):
            given = iter(items) if data is not items else items
            dealt = DealtBatches(given, None)
            before = list(dealt.done_of_rank(TwoRanks(rank), done))
            found = list(dealt.of_rank(TwoRanks(rank), done.__contains__))
            assert [each for each in found if each[0] not in done] == [(each, each) for each in wanted[rank]]
            again = [*before, *(each for each in found if each[0] in done)]
            assert again == [(each, each) for each in compared[rank]]
            assert not before or before == again  # what can be read by its number is compared first
            assert (dealt.total, dealt.first) == (5, 0)


def test_a_loader_with_an_iteration_of_its_own_is_iterated_over():
    data = Tenfold(list(torch.arange(3)), batch_size=1, collate_fn=number_of)
    dealt = DealtBatches(data, None)
    assert list(dealt.of_rank(TwoRanks(0))) == [(0, 0), (2, 20)]


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["default", "own"])
def test_a_shuffled_loader_keeps_the_order_of_an_iteration(generator):
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=4, shuffle=True, generator=generator)
    found = []
    for run in (lambda: loader, lambda: DealtBatches(loader, None).of_rank(OneRank)):
        (generator or torch.default_generator).manual_seed(3)
        batches = list(run())
        found.append([(batch[1] if isinstance(batch, tuple) else batch)[0].tolist() for batch in batches])
    assert found[0] == found[1]
    assert found[0] != [list(range(start, start + 4)) for start in range(0, 40, 4)]


class PowerCutError(Exception):
    """Ends a run in the middle."""


def interrupted(batches: list[Tensor]) -> Iterator[Tensor]:
    yield from batches
    raise PowerCutError


def in_one_process(folder: Path, batches: Any, **more: Any) -> dict[str, Any]:
    with fxq.share_work(checkpoint=folder):
        made = fxq.calibrate(stories.prepared("histogram"), batches, progress=False, **more)
    return {key: value.clone() for key, value in made.state_dict().items()}


@pytest.fixture
def widening() -> list[Tensor]:
    """Batches of which the later ones are wide: a histogram that holds one of them too many shows it."""
    return [each * (100 if index > 24 else 1) for index, each in enumerate(stories.images(27, 1))]


def test_a_run_on_fewer_batches_takes_no_record_of_later_ones(tmp_path, widening, runs):
    """Neither from a file of all of them, nor twice from two files with the same batches."""
    wanted = {count: stories.calibrated("histogram", widening[:count]) for count in (25, 27)}
    with pytest.raises(PowerCutError):
        in_one_process(tmp_path, interrupted(widening))
    with pytest.raises(PowerCutError):
        in_one_process(tmp_path, interrupted(widening[:25]), num_batches=26)
    assert len(list(tmp_path.iterdir())) == 2
    copies = tmp_path.parent / f"{tmp_path.name}-copies"
    shutil.copytree(tmp_path, copies)
    assert differences(wanted[25], in_one_process(tmp_path, widening, num_batches=25)) == []
    runs.clear()
    assert differences(wanted[27], in_one_process(copies, widening)) == []
    assert runs == []


def test_an_interrupt_keeps_what_was_observed(tmp_path):
    """In the observers, but where a folder keeps it: there the next call begins with the model as it was."""

    def stopped() -> Iterator[Tensor]:
        yield from stories.images(3)
        raise KeyboardInterrupt

    kept, untouched = stories.prepared("histogram"), stories.prepared("histogram")
    before = {key: value.clone() for key, value in untouched.state_dict().items()}
    for made, folder in ((kept, None), (untouched, tmp_path)):
        ranks = Ranks(None, 1.0, folder)
        with pytest.raises(KeyboardInterrupt):
            calibrate_in_ranks(made, stopped(), ranks, num_batches=None, progress=False, until_stable=False)
    wanted = fxq.calibrate(stories.prepared("histogram"), stories.images(3), progress=False)
    assert differences(wanted.state_dict(), kept.state_dict()) == []
    assert differences(before, untouched.state_dict()) == []
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", [list, iter, DataLoader], ids=["list", "iterator", "loader"])
def test_other_batches_than_those_that_were_observed_are_refused(tmp_path, kind, runs):
    """Though the first one is the same; and then what was observed still serves the same data."""

    def data(batches: list[Tensor]) -> Any:
        return DataLoader(torch.cat(batches), batch_size=4) if kind is DataLoader else kind(batches)

    batches = stories.images(3)
    with pytest.raises(PowerCutError):
        in_one_process(tmp_path, interrupted(batches))
    runs.clear()
    for place, change in ((1, 1), (2, torch.inf)):
        others = [each + change if index == place else each for index, each in enumerate([*batches, batches[0]])]
        words = rf"(?s)this batch is another one.*at: +calibration batch {place}, .*hint: +give another folder"
        with pytest.raises(InputError, match=words):
            in_one_process(tmp_path, data(others))
    assert runs == []
    wanted = stories.calibrated("histogram", [*batches, batches[0]])
    assert differences(wanted, in_one_process(tmp_path, data([*batches, batches[0]]))) == []
    assert len(runs) == 1
    assert list(tmp_path.iterdir()) == []


def test_batches_are_told_apart():
    x = torch.arange(6.0)
    kinds = [x, x + 1, x.view(2, 3), x.double(), x.int(), {"a": x}, (x, 1), (x, 2), (x, "1"), (x, x), -x, []]
    digests = [batch_digest(each) for each in kinds]
    assert digests[0] == digests[5]  # names of inputs are the model's
    assert len(set(digests)) == len(kinds) - 1
    assert batch_digest(x.clone()) == batch_digest(x.view(2, 3).t().t().reshape(6)) == digests[0]


def test_records_of_another_version_are_left_alone(tmp_path, monkeypatch, runs):
    with pytest.raises(PowerCutError):
        in_one_process(tmp_path, interrupted(stories.images(3)))
    runs.clear()
    monkeypatch.setattr(rank_files, "VERSION", "0.0.9")
    in_one_process(tmp_path, stories.images(3))
    assert len(runs) == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_data_that_ends_before_what_was_observed_is_refused(tmp_path, widening):
    with pytest.raises(PowerCutError):
        in_one_process(tmp_path, interrupted(widening))
    with pytest.raises(InputError, match="ends before the batches that an earlier run has observed"):
        in_one_process(tmp_path, iter(widening[:5]))


class Watched(fxq.Quantizer):
    """Observes in its own way."""

    def observe(self, *args: Any, **kwargs: Any) -> Any:
        return super().observe(*args, **kwargs)


class Chooses(nn.Module):
    """Calls torch.cond."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x), (x,))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.export, on torch.cond
@pytest.mark.parametrize(
    ("kind", "words"), [("observe", "Watched, which has an observe"), ("cond", "branches of torch")]
)
def test_what_has_no_record_is_refused_by_name(tmp_path, kind, words):
    """What shows batches to its own observers would end with those of this rank alone."""
    batches = stories.images(2) if kind == "observe" else [torch.randn(2, 8)] * 2
    made = Watched(stories.network(), batches[0]) if kind == "observe" else fxq.prepare(Chooses().eval(), batches[0])
    with fxq.share_work(checkpoint=tmp_path), pytest.raises(InputError, match=words):
        fxq.calibrate(made, batches, progress=False)
    fxq.calibrate(made, batches, progress=False)


def test_a_trained_model_has_nothing_to_calibrate_among_ranks(tmp_path):
    trained = stories.qat_of("")
    made = quantizer_of(trained)
    with fxq.share_work(checkpoint=tmp_path), pytest.raises(CalibrationError, match="this model was trained"):
        fxq.calibrate(made, stories.images(1), progress=False)


def test_observers_can_be_written_to_after_inference_mode(tmp_path):
    made = stories.prepared("histogram")
    with torch.inference_mode(), fxq.share_work(checkpoint=tmp_path):
        fxq.calibrate(made, stories.images(3), progress=False)
    assert not any(value.is_inference() for value in made.state_dict().values())
    fxq.calibrate(made, stories.images(4), progress=False)
    wanted = fxq.calibrate(stories.prepared("histogram"), stories.images(3), progress=False)
    fxq.calibrate(wanted, stories.images(4), progress=False)
    assert differences(wanted.state_dict(), made.state_dict()) == []


def test_facts_have_no_addresses_of_objects():
    kept = [lambda: fxq.MinMaxObserver() for _ in range(2)]  # at two addresses
    first, second = (str(fxq.QConfig(activation=each, weight=fxq.MinMaxObserver)) for each in kept)
    assert first != second
    assert without_addresses(first) == without_addresses(second)


def test_a_process_that_has_ended_is_known():
    assert Process.this().may_run()
    assert not Process(Process.this().host, 2**22 + 1).may_run()
    assert Process("elsewhere", 1).may_run()
