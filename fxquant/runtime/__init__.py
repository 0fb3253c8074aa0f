"""Runs a lowered graph without its Python, by programs of native operators, one for each shape of the inputs."""

from fxquant.runtime.program_engine import ENGINES, ProgramEngine, attach_engine, engine_of, without_engine

__all__ = ["ENGINES", "ProgramEngine", "attach_engine", "engine_of", "without_engine"]
