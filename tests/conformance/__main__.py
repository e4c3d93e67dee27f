"""`python -m tests.conformance` writes docs/explanation/conformance.md."""

from tests.conformance.page import main

main()
