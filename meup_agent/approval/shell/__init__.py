"""Command lines of shells, as rules see them: the commands that a line runs, and where it writes.

In: the arguments of a call. Out: every simple command of its line, the files of its redirections,
what of it is unclear, and whether patterns take it. Nothing here runs anything, looks at a file, or
knows an environment. The parser is tree-sitter with its grammar of bash (extra ``doors``); without
it every line is unclear.

Each line is read twice, as patterns are (PROTOCOL 7). Narrowly, a command is what its words say as
they stand, and whatever the shell would put in their place is unknown and taken by no pattern. An
allow takes a line if it takes each of its commands. Widely, a command is also what other programs
start for it, under any path of its name, with options between its words; a rule that holds back
takes a line if it takes one of them. Where a line does not tell what runs, no allow takes it, and a
rule that holds back is in doubt, so people are asked.
"""
