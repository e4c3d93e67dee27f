"""The console in a real browser: `make console`.

Its files are named `check_*`, so that a run of everything else needs no browser.
"""
