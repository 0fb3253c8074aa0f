"""Fewer bits on the command line: equalize, search and learn between ``prepare`` and ``convert``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fxquant as fxq
from fxquant.cli.accuracy import labels_of, logits_of, not_comparable
from fxquant.cli.data import Data
from fxquant.cli.subject import Ready, Subject, prepared_from
from fxquant.errors import InputError

BYTE = 8


def check_options(options: argparse.Namespace, subject: Subject, data: Data | None) -> fxq.Budget | None:
    """Refuse what cannot be done with the model and the data, before anything takes its time.

    Returns:
        The budget of the command line; None where it names none.

    Raises:
        InputError: there is no data; or bits are searched in a file that has its own; or all weights have 8 bits, and
            are to be learned; or the budget is out of range.
    """
    budget = None if options.budget is None else fxq.Budget(**options.budget)
    searched = budget is not None or options.max_drop is not None
    named = {"--equalize": options.equalize, "--reconstruct": options.reconstruct is not None}
    named |= {"--budget": budget is not None, "--max-drop": options.max_drop is not None}
    asked = [name for name, is_asked in named.items() if is_asked]
    if asked and data is None:
        raise InputError(f"{asked[0]} needs data to measure on", got="no --data")
    if searched and subject.form == "prepared":
        raise InputError(
            f"{asked[-1]} chooses bits, and those of this file are chosen",
            at=subject.spec,
            got="a prepared model",
            expected="a model, or a file of a float model",
        )
    if options.reconstruct is not None and not searched and subject.form != "prepared":
        raise InputError(
            "--reconstruct learns weights of fewer than 8 bits, and all have 8 here",
            got="neither --budget nor --max-drop",
            expected="--budget size=0.5, for example, or a file that was prepared with fewer bits",
        )
    if options.checkpoint is not None and not searched and options.reconstruct is None:
        raise InputError("--checkpoint is for --budget, --max-drop and --reconstruct", got="none of them")
    return budget


def calibrated(
    options: argparse.Namespace, subject: Subject, ready: Ready, budget: fxq.Budget | None
) -> tuple[Ready, list[Any]]:
    """Equalize, calibrate, search for bits, and learn, as far as the command line asks for it.

    Args:
        options: Of the command line.
        subject: The model.
        ready: It is prepared.
        budget: What ``check_options`` gave.

    Returns:
        What to convert, and tables for the report.

    Raises:
        InputError: ``--max-drop`` is given, and the data has no labels that fit; or as the functions raise it.
    """
    if options.max_drop is not None:
        _check_labels(ready)
    now = _equalized(options, ready)
    tables: list[Any] = []
    if budget is not None or options.max_drop is not None:
        found = _searched(options, now, budget)
        print(f"\n{found}\n", flush=True)
        tables.append(found)
        mixed = prepared_from(
            options, subject, ready.data, backend=ready.quantizer.backend.name, qconfig=found.mapping()
        )
        now = _equalized(options, mixed)
    if options.reconstruct is not None:
        if tables and all(row.weight is None or row.weight >= BYTE for row in tables[0]):
            print("nothing was learned: no weight has fewer than 8 bits")
            return now, tables
        learned = fxq.reconstruct(
            now.quantizer,
            _data(ready).calibration,
            iterations=options.reconstruct,
            checkpoint=_folder(options, "reconstruct"),
        )
        print(f"\n{learned.reconstruction}\n", flush=True)
        now = replace(now, quantizer=learned)
    return now, tables


def _equalized(options: argparse.Namespace, ready: Ready) -> Ready:
    """Return the model with ranges, and its channels scaled before if that is asked for."""
    if options.equalize:
        scaled = fxq.equalize(ready.quantizer, _data(ready).calibration)
        print(f"\n{scaled.equalization}\n", flush=True)
        ready = replace(ready, quantizer=scaled)
    ready.calibrate(progress=True)
    return ready


def _searched(options: argparse.Namespace, ready: Ready, budget: fxq.Budget | None) -> fxq.PrecisionSearch:
    given = {} if budget is not None else {"max_drop": options.max_drop, "metric": right_answers, "against": "target"}
    return fxq.search_precision(
        ready.quantizer, _data(ready).calibration, budget=budget, checkpoint=_folder(options, "search"), **given
    )


def right_answers(output: Any, labels: Tensor) -> Tensor:
    """Return the share of right answers in percent."""
    logits = logits_of(output)
    assert logits is not None  # it was looked at before
    return 100 * (logits.argmax(1) == labels).double().mean()


def _check_labels(ready: Ready) -> None:
    data = _data(ready)
    batch = next(iter(data.calibration))
    labels = labels_of(batch, len(ready.args))
    reason = "the data has no labels"
    if labels is not None:
        with torch.no_grad():
            logits = logits_of(ready.quantizer.graph_module(*ready.args, **ready.kwargs))
        reason = not_comparable(logits, labels, data.classes)
    if reason:
        raise InputError(
            "--max-drop counts right answers, which cannot be told here",
            got=reason,
            expected="a folder with a folder for each class, or batches of inputs and labels",
            hint="--budget needs no labels",
        )


def _data(ready: Ready) -> Data:
    assert ready.data is not None  # check_options has refused the rest
    return ready.data


def _folder(options: argparse.Namespace, name: str) -> Path | None:
    return None if options.checkpoint is None else options.checkpoint / name
