"""Acts as a participant over HTTP, beside its running agent, whose connection stays its own."""
