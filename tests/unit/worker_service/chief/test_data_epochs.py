"""The chief's account of epochs, from what workers report to loaders."""

from __future__ import annotations

import gc

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.report.measurements import DataEpoch
from worker_service.chief.data_epochs import KEPT_EPOCHS, DataEpochs
from worker_service.chief.data_parts import Pass


def a_pass(
    number: int,
    examples: int,
    *,
    process: str = "p",
    size: int = 10,
    ended: bool = False,
    lost: bool = False,
    loader: int = 0,
    epoch: int | None = None,
) -> pb.Pass:
    return pb.Pass(
        loader=loader,
        process=process,
        number=number,
        examples=examples,
        size=size,
        ended=ended or lost,
        lost=lost,
        epoch=epoch,
    )


def loader(*readers: pb.Reader, process: str = "p") -> list[pb.ShardState]:
    return [pb.ShardState(process=process, readers=readers)]


def reader(name: str, *passes: pb.Pass, is_alive: bool = True, step: int = 0) -> pb.Reader:
    return pb.Reader(member=pb.Member(process=name), is_alive=is_alive, passes=passes, step=step)


def found(epochs: DataEpochs) -> list[tuple[int, int, int | None]]:
    record = epochs.record()
    assert record is not None
    return [(epoch.epoch, epoch.delivered, epoch.lost) for epoch in record.epochs]


def test_an_epoch_is_over_once_each_live_worker_has_begun_a_later_one() -> None:
    epochs = DataEpochs()
    assert epochs.record() is None
    ahead = reader("a", a_pass(0, 6, ended=True), a_pass(1, 2))
    epochs.note(loader(ahead, reader("b", a_pass(0, 2))))
    assert found(epochs) == [(0, 8, None), (1, 2, None)]
    epochs.note(loader(ahead, reader("b", a_pass(0, 4, ended=True), a_pass(1, 1))))
    assert found(epochs) == [(0, 10, 0), (1, 3, None)]


def test_a_worker_that_has_an_example_of_an_epoch_which_it_has_not_counted_holds_it_open() -> None:
    epochs = DataEpochs()
    epochs.note(loader(reader("a", a_pass(0, 8), a_pass(1, 0))))
    assert found(epochs)[0] == (0, 8, None)


def test_what_a_dead_worker_was_given_counts_and_it_is_waited_for_no_longer() -> None:
    epochs = DataEpochs()
    dead = reader("b", a_pass(0, 2), is_alive=False)
    epochs.note(loader(reader("a", a_pass(0, 5, ended=True), a_pass(1, 1)), dead))
    assert found(epochs)[0] == (0, 7, 3)
    epochs.note(loader(reader("a", a_pass(0, 5, ended=True), a_pass(1, 4))))
    assert found(epochs)[0] == (0, 7, 3), "though the loader has forgotten it"


def test_a_new_process_of_a_loader_continues_the_count_of_epochs() -> None:
    epochs = DataEpochs()
    before = a_pass(0, 10, ended=True), a_pass(1, 4, lost=True)
    epochs.note(loader(reader("a", *before, a_pass(0, 3, process="q")), process="q"))
    assert found(epochs) == [(0, 10, 0), (1, 4, 6), (2, 3, None)]
    record = epochs.record()
    assert record is not None
    assert (record.num_examples, record.delivered, record.lost, record.ended_epochs) == (10, 17, 6, 2)


@pytest.mark.parametrize("began", [0, 7])
def test_the_part_of_a_loader_that_was_away_for_some_epochs_is_lost_in_each(began: int) -> None:
    """Also if another worker, which began in the epoch with this number, is the first to read from it again."""

    def of_0(process: str, first: int, *sizes: int) -> list[pb.Pass]:
        return [a_pass(each, size, process=process, epoch=first + each) for each, size in enumerate(sizes)]

    def of_1(*numbers: int) -> list[pb.Pass]:
        return [a_pass(each, 10, process="r", loader=1, ended=True, epoch=each - began) for each in numbers]

    epochs = DataEpochs()
    before = [a_pass(0, 10, ended=True, epoch=0), a_pass(1, 4, lost=True, epoch=1)]
    first = [a_pass(each, 10, process="r", loader=1, ended=True, epoch=each) for each in range(7)]
    away, back = pb.ShardState(process="p"), pb.ShardState(process="q")
    epochs.note([away, pb.ShardState(process="r", readers=[reader("a", *before, *first)])])
    assert found(epochs)[1:3] == [(1, 14, 6), (2, 10, None)]
    second = of_1(*range(7, 11))
    second[-1].examples, second[-1].ended = 1, False
    again = of_0("q", 8 - began, 10, 10, 1)
    again[0].ended = again[1].ended = True
    own = [*second, *again] if began else [*before, *first, *second, *again]
    epochs.note([back, pb.ShardState(process="r", readers=[reader("b" if began else "a", *own)])])
    lost = [(each, 10, 10) for each in range(2, 8)]
    assert found(epochs) == [(0, 20, 0), (1, 14, 6), *lost, (8, 20, 0), (9, 20, 0), (10, 2, None)]


def test_the_part_of_a_loader_that_was_frozen_for_some_epochs_is_lost_in_each() -> None:
    """Its process continues, in an epoch of the workers that they do not all reach at the same pass."""
    epochs = DataEpochs()
    frozen = [a_pass(0, 5, ended=True, epoch=0), a_pass(1, 2, lost=True, epoch=1)]
    others = [a_pass(each, 5, process="r", loader=1, ended=True, epoch=each) for each in range(9)]
    half = reader("a", *frozen, *others), reader("b", *frozen, *others)
    epochs.note([pb.ShardState(process="p", readers=half), pb.ShardState(process="r")])
    assert found(epochs)[1:3] == [(1, 14, 6), (2, 10, None)]
    of_a = a_pass(1, 4, ended=True, epoch=7), a_pass(2, 5, ended=True, epoch=8), a_pass(3, 0, epoch=9)
    of_b = a_pass(1, 2, ended=True, epoch=1), a_pass(2, 5, ended=True, epoch=8), a_pass(3, 0, epoch=9)
    newest = a_pass(9, 0, process="r", loader=1, epoch=9)
    half = reader("a", frozen[0], *of_a, *others, newest), reader("b", frozen[0], *of_b, *others, newest)
    epochs.note([pb.ShardState(process="p", readers=half), pb.ShardState(process="r")])
    lost = [(each, 10, 10) for each in range(1, 7)]
    assert found(epochs) == [(0, 20, 0), *lost, (7, 16, 4), (8, 20, 0), (9, 0, None)]


def test_data_of_unknown_size_have_that_of_an_epoch_without_a_loss() -> None:
    epochs = DataEpochs()
    epochs.note(loader(reader("a", a_pass(0, 7, size=-1, lost=True), a_pass(0, 1, size=-1, process="q")), process="q"))
    assert found(epochs)[0] == (0, 7, None)
    whole = a_pass(0, 9, size=-1, process="q", ended=True)
    epochs.note(loader(reader("a", whole, a_pass(1, 1, size=-1, process="q")), process="q"))
    assert found(epochs)[:2] == [(0, 7, 2), (1, 9, 0)]


def test_the_report_has_the_newest_epochs_and_those_with_a_loss() -> None:
    epochs = DataEpochs()
    passes = [a_pass(number, 9 if number == 3 else 10, ended=True) for number in range(150)]
    for number in range(0, 150, 50):
        epochs.note(loader(reader("a", *passes[number : number + 50])))
    record = epochs.record()
    assert record is not None
    assert [epoch.epoch for epoch in record.epochs] == [3, *range(50, 150)]
    assert record.epochs[0] == DataEpoch(epoch=3, delivered=9, lost=1)
    assert (record.ended_epochs, record.lost, record.delivered) == (149, 1, 1499)


def test_the_counts_of_any_number_of_epochs_take_no_more_memory() -> None:
    epochs = DataEpochs()
    last = 4 * KEPT_EPOCHS
    for start in range(0, last, 100):
        passes = [
            a_pass(number, 9 if number == 3 else 10, ended=True) for number in range(max(0, start - 64), start + 100)
        ]
        epochs.note(loader(reader("a", *passes)))
    passes = [a_pass(last - 1, 10, lost=True), a_pass(0, 4, process="q")]
    epochs.note(loader(reader("a", a_pass(0, 10, ended=True), *passes), process="q"))
    record = epochs.record()
    assert record is not None
    assert (record.num_examples, record.ended_epochs, record.lost, record.delivered) == (10, last, 1, 10 * last - 1 + 4)
    assert [epoch.epoch for epoch in record.epochs] == [3, *range(last - 99, last + 1)]
    kept = [each for each in gc.get_objects() if isinstance(each, Pass)]
    assert len(kept) < 3 * KEPT_EPOCHS


def test_a_pass_that_a_worker_has_not_reported_yet_is_not_the_size_of_the_data_set() -> None:
    epochs = DataEpochs()
    epochs.note(loader(reader("a", a_pass(0, 6, size=-1, ended=True), a_pass(1, 2, size=-1))))
    later = a_pass(1, 6, size=-1, ended=True), a_pass(2, 1, size=-1)
    of_b = a_pass(1, 4, size=-1, ended=True), a_pass(2, 1, size=-1)
    epochs.note(loader(reader("a", *later), reader("b", *of_b)))
    assert found(epochs) == [(0, 6, 4), (1, 10, 0), (2, 2, None)]


def test_a_worker_that_has_read_nothing_yet_is_not_waited_for() -> None:
    epochs = DataEpochs()
    epochs.note(loader(reader("a", a_pass(0, 10, ended=True), a_pass(1, 0)), reader("starting")))
    assert found(epochs)[0] == (0, 10, 0)


def test_the_counts_are_complete_once_each_live_worker_that_reads_has_reported_those_of_the_step() -> None:
    epochs, own = DataEpochs(), a_pass(0, 5)
    epochs.note(loader(reader("a", own, step=8), reader("b", own, step=7), reader("starting")))
    assert (epochs.has_counts(7), epochs.has_counts(8)) == (True, False)
    epochs.note([*loader(reader("b", own, step=7)), *loader(reader("b", own, step=8))])
    assert epochs.has_counts(8), "another loader has a newer report"
    epochs.note(loader(reader("a", own, step=9), reader("b", own, step=8, is_alive=False)))
    assert epochs.has_counts(9), "a worker that died is not waited for"


def test_epochs_without_a_loader_that_never_comes_back_are_over_when_training_ends() -> None:
    """Worker c has not read from the process of the loader that was lost."""
    epochs = DataEpochs()
    first = a_pass(0, 5, ended=True, epoch=0), a_pass(1, 2, lost=True, epoch=1)
    others = [a_pass(each, 3, process="r", loader=1, ended=True, epoch=each) for each in range(4)]
    newest = a_pass(4, 1, process="r", loader=1, epoch=4)
    readers = reader("a", *first, *others, newest), reader("c", *others, newest)
    epochs.note([pb.ShardState(process="p"), pb.ShardState(process="r", readers=readers)])
    epochs.note([None, pb.ShardState(process="r", readers=readers)])
    assert [lost for _, _, lost in found(epochs)] == 5 * [None]
    epochs.end()
    assert found(epochs) == [(0, 11, 9), (1, 8, 12), (2, 6, 14), (3, 6, 14), (4, 2, None)]


def test_a_loader_that_has_never_answered_has_examples_of_unknown_number() -> None:
    epochs = DataEpochs()
    epochs.note([*loader(reader("a", a_pass(0, 10, ended=True), a_pass(1, 4))), None])
    record = epochs.record()
    assert record is not None
    assert (record.num_examples, record.delivered, record.lost) == (None, 14, 0)
    assert found(epochs) == [(0, 10, None), (1, 4, None)]
