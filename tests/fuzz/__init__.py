"""Fuzzing: what strangers can send, tried by the million.

Each target is a module here with ``NAME``, ``SEEDS`` (inputs to begin with) and ``run``, which
takes any bytes and raises if something that must hold does not. Inputs are lines of text, so that
what is found can be read.

    python -m tests.fuzz               # all targets, ten minutes in all
    python -m tests.fuzz space --seconds 60

With atheris, which follows what each input reaches in the package; where atheris has no build, by
chance, and it says so. What is found goes to ``tests/fuzz/cases/<target>/`` and is kept there:
test_cases.py replays it in every run of the suite, without atheris.
"""
