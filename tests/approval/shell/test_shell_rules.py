"""Rules about command lines: what an allow lets through, and what a deny finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from meup_agent.approval import AllowRule, AskRule, DenyRule, Policy, Verdict
from meup_agent.approval.policy.cases import call_from
from meup_agent.approval.policy.rules import PolicyRule
from meup_agent.approval.shell import line as reading
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.wire.payloads import DOOR, Call

READS = AllowRule(
    "Bash", shell=["git status*", "git log*", "ls*", "cat *", "echo *", "sort *", "find *"]
)
TOOLS = AllowRule(
    "Bash",
    shell=[
        *("ls*", "echo *", "printf *", "read *", "export *", "declare *", "unset *", "hash *"),
        *("wait *", "test *", "sort *", "sed -n *", "uniq *", "git grep *", "tar -tf *", "less *"),
        *("xxd *", "iconv *", "set *"),
    ],
)
NO_RM = [DenyRule("Bash", shell="rm *"), AllowRule("Bash")]


def decide(rules: Sequence[PolicyRule], command: object, tool: str = "Bash", **more: Any) -> str:
    call = call_from(tool, {"command": command, **more}, target="mac")
    return str(Policy(rules).decide(call, "claude").verdict)


# What really runs is `rm` in each; the verdict is that of a deny of it before an allow of all.
EVASIONS = {
    "list": ("git status; rm -rf x", "deny"),
    "and": ("git status && rm x", "deny"),
    "or": ("git status || rm x", "deny"),
    "pipe": ("git status | rm x", "deny"),
    "background": ("git status & rm x", "deny"),
    "line end": ("git status\nrm x", "deny"),
    "line end and backslash": ("ls a\n\\\nrm x", "deny"),
    "line end and backslash behind a file": ("ls 2>&1\n\\\nrm x", "deny"),
    "line end and backslash behind a text": ("ls <<< a \n \\\nrm x", "deny"),
    "line end and backslash behind a variable": ("x=1\n\\\nrm x", "deny"),
    "process of a test, zsh": ("[[ -n =(rm x) ]]", "ask"),
    "comment and line end": ("git status # \nrm x", "deny"),
    "substitution": ("git status $(rm x)", "deny"),
    "backquotes": ("git status `rm x`", "deny"),
    "substitution in quotes": ('git status "$(rm x)"', "deny"),
    "substitution in a default": ("git status ${x:-$(rm x)}", "deny"),
    "process substitution": ("git status <(rm x)", "deny"),
    "process substitution, written": ("git status >(rm x)", "deny"),
    "subshell": ("(rm x)", "deny"),
    "group": ("{ rm x; }", "deny"),
    "loop": ("for f in *; do rm $f; done", "deny"),
    "condition": ("if ls; then rm x; fi", "deny"),
    "case": ("case a in a) rm x;; esac", "deny"),
    "quotes within": ("r''m x", "deny"),
    "double quotes": ('"rm" x', "deny"),
    "backslash": ("r\\m x", "deny"),
    "backslash in front": ("\\rm x", "deny"),
    "backslash and line end": ("r\\\nm x", "deny"),
    "escapes": ("$'\\x72\\155' x", "deny"),
    "part of a variable": ("a[0]=git rm x", "deny"),
    "its path": ("/bin/rm x", "deny"),
    "a path up": ("../../bin/rm x", "deny"),
    "other case": ("RM x", "deny"),
    "IFS": ("rm$IFS-rf$IFS/", "deny"),
    "IFS in braces": ("rm${IFS}x", "deny"),
    "variable": ("X=rm; $X y", "deny"),
    "braces": ("{rm,-rf,/}", "deny"),
    "glob": ("/bin/r? x", "ask"),
    "sh -c": ("sh -c 'rm x'", "deny"),
    "bash -lc": ('bash -lc "git status; rm x"', "deny"),
    "sh -c in sh -c": ("sh -c 'sh -c \"rm x\"'", "deny"),
    "here-string": ("bash <<< 'rm x'", "deny"),
    "heredoc": ("bash <<EOF\nrm x\nEOF", "deny"),
    "heredoc with a substitution": ("cat <<EOF\n$(rm x)\nEOF", "deny"),
    "into a shell": ("echo rm x | sh", "deny"),
    "decoded": ("echo cm0geAo= | base64 -d | sh", "ask"),
    "eval": ("eval 'rm x'", "deny"),
    "eval of words": ("eval r'm' x", "deny"),
    "eval of a variable": ('eval "$X"', "ask"),
    "env": ("env rm x", "deny"),
    "env with assignments": ("env -i -u B A=1 rm x", "deny"),
    "env with another name": ("env A=1 a-b=c rm x", "deny"),
    "env with a function": ("env 'BASH_FUNC_ls%%=() { rm x; }' bash -c ls", "deny"),
    "env -S": ("env -S 'rm x'", "deny"),
    "env -S, joined": ("env -S'rm x'", "deny"),
    "xargs": ("ls | xargs -n 1 rm", "deny"),
    "xargs sh -c": ("ls | xargs -I{} sh -c 'rm {}'", "deny"),
    "xargs --replace": ("ls | xargs --replace=% rm %", "deny"),
    "find -exec": ("find . -exec rm {} \\;", "deny"),
    "find -execdir +": ("find . -type f -execdir rm {} +", "deny"),
    "nohup": ("nohup rm x", "deny"),
    "timeout": ("timeout -k 5 10 rm x", "deny"),
    "sudo": ("sudo -Eu root rm x", "deny"),
    "doas": ("doas -u root rm x", "deny"),
    "nice": ("nice -n 5 rm x", "deny"),
    "time": ("time -p rm x", "deny"),
    "time of a subshell": ("time (rm x)", "deny"),
    "negation": ("! rm x", "deny"),
    "command": ("command rm x", "deny"),
    "builtin": ("builtin rm x", "deny"),
    "exec": ("exec -a git rm x", "deny"),
    "coproc": ("coproc rm x", "deny"),
    "coproc with a name": ("coproc N { rm x; }", "deny"),
    "busybox": ("busybox rm x", "deny"),
    "trap": ("trap 'rm x' EXIT", "deny"),
    "function": ("git() { rm x; }; git status", "deny"),
    "function by its word": ("function git { rm x; }; git status", "deny"),
    "alias": ("alias ls='rm x'; ls", "deny"),
    "source": ("source x.sh", "ask"),
    "dot": (". ./x.sh", "ask"),
    "git -c": ("git -c core.pager='rm x' log", "deny"),
    "git alias": ("git -c alias.st='!rm x' st", "deny"),
    "interpreter": ("python3 -c 'import os; os.system(\"rm x\")'", "ask"),
    "no-break space": ("rm\u00a0x", "deny"),
    "wide space": ("git status\u2003; rm x", "deny"),
    "line separator": ("git status\u2028rm x", "deny"),
    "carriage return": ("git status\rrm x", "deny"),
    "glob that runs, zsh": ("ls *(e:'rm x':)", "ask"),
    "substitution, zsh": ("ls =(rm x)", "deny"),
    "emulation, zsh": ("emulate sh -c 'rm x'", "deny"),
    "precommand, zsh": ("noglob rm x", "deny"),
    "index that runs": ("[[ -v 'a[$(rm x)]' ]] && ls", "ask"),
    "offset that runs": ("x='b[$(rm x)]'; y=abc; echo ${y:x:1}", "ask"),
    "offset that runs, quoted": ("x='b[$(rm x)]'; echo \"${@:x}\"", "ask"),
    "index of printf": ("printf -v 'a[$(rm x)]' y", "ask"),
    "index of read": ("read 'a[$(rm x)]' <<< y", "ask"),
    "index of test": ("o=-v; test $o 'a[$(rm x)]'", "ask"),
    "index of [": ("o=-v; [ $o 'a[$(rm x)]' ]", "deny"),
    "index of let": ("let 'a[$(rm x)]'", "ask"),
    "text of declare": ("declare -a 'a=($(rm x))'", "ask"),
    "backquotes in an expansion": ('echo "${x:-`rm x`}"', "ask"),
    "backquotes in backquotes": ("echo `echo \\`rm x\\``", "deny"),
    "process in an expansion": ("echo ${x:-<(rm x)}", "ask"),
    "quotes in a quoted expansion": ("echo \"${x:-'$(rm x)'}\"", "ask"),
    "heredoc with backquotes": ("cat <<EOF\n`rm x`\nEOF", "ask"),
    "heredoc behind a sign": ("cat <<EOF\n$ $(rm x)\nEOF", "ask"),
    "heredoc behind a tab": ("cat <<EOF\n\t$(rm x)\nEOF", "ask"),
    "heredoc, joined lines": ("cat <<EOF\n$\\\n(rm x)\nEOF", "ask"),
    "heredoc, joined end": ("cat <<EOF\nEO\\\nF\nrm x\nEOF", "ask"),
    "heredoc, joined start": ("cat <<EOF\n\\\nEOF\nrm x\nEOF", "deny"),
    "not closed": ("git status '; rm x", "deny"),
    "negated group": ("! { rm x; }", "deny"),
    "negated loop": ("! for f in a; do rm $f; done", "deny"),
    "time of a group": ("time { rm x; }", "deny"),
    "descriptor in front": ("0<&1 rm x", "ask"),
    "variable of a descriptor": ("{v}<&1 rm x", "deny"),
    "trap behind --": ("trap -- 'rm x' EXIT", "deny"),
    "trap of a variable": ("trap $x", "ask"),
    "bash -oc": ("bash -oc pipefail 'rm x'", "deny"),
    "jobs -x": ("jobs -x rm x", "deny"),
    "compgen -C": ("compgen -C 'rm x'", "deny"),
    "mapfile -C": ("mapfile -C 'rm x' -c 1 v <<< a", "deny"),
    "braces of a launcher": ("{sudo,rm,x}", "deny"),
    "launcher of a variable": ("x=nohup; $x rm y", "deny"),
    "value that is cut": ("x=a[a]\\b rm x", "deny"),
    "more braces than are gone through": ("{r{m,x}," + ",".join(map(str, range(64))) + "}", "ask"),
    "braces in braces": ("{env,{A=1,rm},x}", "deny"),
    "variable that is set anew": ("x=rm; $x y; x=ls", "ask"),
    "variable that is not set yet": ("r${x}m y; x=1", "ask"),
    "test over two lines": ("[\nrm x\n-f y ]", "deny"),
    "test with a command": ("[ a ] && ls; [ -f a || rm x ]", "deny"),
    "file that is read twice": ("cat a >&'$(rm x)'", "deny"),
    "closed descriptor": ("cat a >&-rm x | cat", "ask"),
    "sh: both outputs": ("sh -c 'ls &>/dev/null rm x'", "ask"),
    "heredoc, blank before its end": ("cat <<-E\n E\necho '$(r${x}m y)'\ncat <<E\nE\n", "ask"),
    "test without a blank": ("[[! a =\nrm x\n= $(ls) && b ]]", "deny"),
    "heredoc, joined variable": ("cat <<E\n$\\\n(r${x}m y)\nE", "ask"),
    "sh: test": ("sh -c '[[ a || rm x ]]'", "deny"),
    "sh: escapes": ("sh -c \"ls \\$'\\\\'; rm x #'\"", "ask"),
    "prompt of a trace": ("PS4='$(rm x)'; set -x; ls", "deny"),
    "sudo, long option": ("sudo --role x rm y", "deny"),
    "docker exec": ("docker exec -it web rm x", "deny"),
    "kubectl exec": ("kubectl exec web -- sh -c 'rm x'", "deny"),
    "uv run": ("uv run --with a rm x", "deny"),
    "npx": ("npx -y rm x", "deny"),
    "tmux": ("tmux new-session -d 'cd a; rm x'", "deny"),
    "unshare": ("unshare -R / rm x", "deny"),
    "pager": ("PAGER='rm x' git log", "deny"),
}


@pytest.mark.parametrize("name", EVASIONS)
def test_an_evasion_is_not_allowed_and_is_found_where_it_can_be_seen(name: str) -> None:
    command, found = EVASIONS[name]
    assert decide([READS], command) == "ask"
    assert decide(NO_RM, command) == found


@pytest.mark.parametrize(
    "command",
    [
        "LD_PRELOAD=/x git status",
        "PATH=/x; git status",
        "export PATH=/x && git status",
        "GIT_PAGER='rm x' git status",
        "IFS=x; git status",
        "git status > /etc/x",
        "git status >> ~/.bashrc",
        "git status &> x",
        "> x",
        "git status \n\\rm x",
        "git status ?\\\n#2>&1 > y",
        "git status 2>&1\\\nx",
        "git status > /dev/null\\\nx",
        "cat <<E\\\nF\nE\nrm x\n",
        "git log 2>&1 --output=x",
        "git log >&2 2>&1 --output=x",
        "git log >/dev/null 2>&1 -O./x --output=x | cat",
        "! git log >/dev/null --output=x",
        "ls && git log >/dev/null --output=x",
        "git log <<E --output=x\nE\n",
        "git log <<E 2>&1 --output=x\nE\n",
        "git log <<< a --output=x",
        "git log <<< a\\\n--stat",
        "git log >&- --output=x",
        "sort -oy1>&2 x",
        "sort -o1>/dev/null x",
        "sh -c 'sort -o 12>/dev/null'",
        "git log -O1>&2",
        "ls - 2>/dev/null",
        "ls {PATH}>/dev/null; ls",
        "ls 2>! y",
        "ls 2>&--",
        "[ a > y ]",
        "cat a >& --output=x",
        "git log --output=x",
        "git log --outp x",
        "sort -o x y",
        "find . -delete",
        "for PATH in /x; do git status; done",
        'echo "${x@P}"',
        "./git status",
        "git statusx y $(",
        "",
        " ",
        "# nothing",
    ],
)
def test_what_does_more_than_its_command_says_is_not_allowed(command: str) -> None:
    assert decide([READS], command) == "ask"


@pytest.mark.parametrize("pattern", ["git diff*", "git d* *", "git *"])
def test_git_difftool_is_allowed_only_where_a_pattern_says_it(pattern: str) -> None:
    for command in ("git difftool", "git difftool -y -x 'rm x' HEAD", "/usr/bin/git difftool"):
        assert decide([AllowRule("Bash", shell=pattern)], command) == "ask"
    assert decide([AllowRule("Bash", shell=pattern)], "git diff --stat") == "allow"
    assert decide([AllowRule("Bash", shell="git difftool *")], "git difftool HEAD") == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "printf -v PATH .; ls",
        "set -ek; ls PATH=.",
        "set -o keyword; ls PATH=.",
        "printf -vPATH .; ls",
        "x=-vPATH; printf $x .; ls",
        "printf $(ls) .; ls",
        "read PATH <<< .; ls",
        'declare "PATH=."; ls',
        "declare -i x; x=1; ls",
        "declare -n x=y; ls",
        "export {PATH=.,b}; ls",
        "unset PATH; echo ${PATH:=.}; ls",
        "wait -p PATH; ls",
        "hash -p ./x ls; ls",
        "test -v 'a[$(ls)]'",
        "git grep -nOless x",
        "sort -uo x y",
        "sed -n 'e ls' x",
        "sed -n 's/.*/ls/e' x",
        "sed -n 's/a/b/w x' y",
        "sed -n -Ei p x",
        "uniq x y",
        "xxd x y",
        "iconv -f latin1 x --out y",
        "tar -tf x -vIls",
        "less +!ls x",
        "sed -n '/x/Ie ls' y",
        "sed -n 's/a/b/gw/tmp/x' y",
        "sed -n sxaxbxe y",
        "sed -n -- e y",
        "sed -n 'p;/[/]w/p' y",
        "sed -n $'1e ls' y",
        'sed -n "$x" y',
        "x='1e ls'; sed -n \"$x\" y",
        "sort $x",
        "sort $(ls)",
        "sort {-ox,y}",
        "sort *",
        "x=-ox; sort $x y",
        "git grep ${x:--Oless} y",
        "x='a[$(ls)]'; ((x))",
        "((PATH=1)); ls",
        "ls='a[$(ls)]'; ! ((ls))",
    ],
)
def test_what_sets_writes_or_runs_beside_its_reading_is_not_allowed(command: str) -> None:
    assert decide([TOOLS], command) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        'printf "%s\\n" "$x"',
        "read -r x; ls",
        'test "$x" = b && ls',
        'echo "${x:-$y}" ${z%/*} ${#z} ${w:0:3}',
        "ls | sort -rn | uniq -c",
        "sed -n 1,5p x",
        "sed -n 's/a/b/gp' x",
        "sed -n '/^[[:space:]]*def f/,$p;5{p;q}' src/x",
        "sort src/*.txt",
        "less -N x",
        "set -euo pipefail; ls",
    ],
)
def test_what_only_reads_is_allowed(command: str) -> None:
    assert decide([TOOLS], command) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "git status",
        "git status --short && ls -la | cat -n",
        "bash -lc 'git status'",
        ["git", "status"],
        ["bash", "-lc", "git status; ls"],
        "git status 2>&1 >/dev/null",
        'for f in *.txt; do cat "$f"; done',
        "if ls; then echo x; else echo y; fi",
        'echo "$HOME" $(ls)',
        "x=$(git status); echo $x",
        "[ -f x ] && cat x",
        "cat <<EOF\nhi\nEOF",
        "ls # all of them",
        "echo 'rm -rf /' \"a;b\"",
        "git status \\\n  --short",
    ],
)
def test_a_line_is_allowed_if_each_of_its_commands_is(command: object) -> None:
    assert decide([READS], command) == "allow"
    assert decide(NO_RM, command) == "allow"


@pytest.mark.parametrize(
    ("pattern", "command", "verdict"),
    [
        ("sort -* x", "sort -r x", "allow"),
        ("sort -* x", "sort -oy x", "ask"),
        ("sort --output=* x", "sort --output=y x", "allow"),
        ("sed -n 1,*p x", "sed -n 1,5p x", "allow"),
        ("sed -n 1,*p x", "sed -n '1,5e ls;p' x", "ask"),
    ],
)
def test_a_wildcard_of_a_reader_takes_no_option_that_writes_or_runs(
    pattern: str, command: str, verdict: str
) -> None:
    assert decide([AllowRule("Bash", shell=pattern)], command) == verdict


def test_what_starts_others_is_allowed_as_it_is_written() -> None:
    rule = AllowRule("Bash", shell=["docker exec web ls *", "uv run pytest *"])
    assert decide([rule], "docker exec web ls -l 'a b'") == "allow"
    assert decide([rule], "uv run pytest -k 'a and b'") == "allow"
    assert decide([rule], "docker exec web rm x") == "ask"


def test_several_rules_allow_a_line_together() -> None:
    rules = [AllowRule("Bash", shell="git status*"), AllowRule("Bash", shell="ls*")]
    assert decide(rules, "git status; ls") == "allow"
    assert decide(rules, "git status; ls; pwd") == "ask"


def test_the_first_rule_about_a_command_counts() -> None:
    rules = [
        AllowRule("Bash", shell="git push origin topic"),
        AskRule("Bash", shell="git push*"),
        DenyRule("Bash"),
    ]
    assert decide(rules, "git push origin topic") == "allow"
    assert decide(rules, "git push") == "ask"
    assert decide(rules, "git push; ls") == "deny"
    rules = [AllowRule("Bash", shell=["git push origin topic", "ls"]), DenyRule("*", shell="git *")]
    assert decide(rules, "git push origin topic && ls") == "allow"
    assert decide(rules, "git push origin topic && git push") == "deny"


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("git push", "deny"),
        ("git -C .. push --force", "deny"),
        ("git --no-pager -c a.b=c push", "deny"),
        ("GIT_DIR=x /usr/bin/git push", "deny"),
        ('git "$X"', "ask"),
        ("$GIT push", "ask"),
        ("git commit -m push", "allow"),
        ("echo git push", "allow"),
        ("gitk", "allow"),
        ("docker run git log", "allow"),
        ("docker run git push", "deny"),
        ("docker push git push", "allow"),
        ('docker run -w "$PWD" -v $PWD:/x web ls', "allow"),
        ("docker run web $X", "ask"),
    ],
)
def test_a_deny_sees_a_command_behind_its_options(command: str, verdict: str) -> None:
    assert decide([DenyRule("Bash", shell="git push*"), AllowRule("Bash")], command) == verdict


def test_an_environment_is_allowed_as_it_is_written() -> None:
    rule = AllowRule("Bash", shell="CI=* make check*")
    assert decide([rule], "CI=1 make check") == "allow"
    assert decide([rule], "make check") == "allow"
    assert decide([rule], "CI=1 LD_PRELOAD=x make check") == "ask"
    assert decide([AllowRule("Bash", shell="*=* make")], "GIT_DIR=x make") == "ask"
    assert decide([AllowRule("Bash", shell="GIT_DIR=x make")], "env GIT_DIR=x make") == "ask"
    assert decide([AllowRule("Bash", shell="GIT_DIR=x make")], "GIT_DIR=x make") == "allow"
    denied = [DenyRule("Bash", shell="LD_*=*"), AllowRule("Bash")]
    for command in ("LD_PRELOAD=x ls", "export LD_PRELOAD=x", "env LD_PRELOAD=$Y ls"):
        assert decide(denied, command) == "deny"


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("echo x > build/a.txt", "allow"),
        ("echo x > ./build/../build/a.txt", "allow"),
        ("echo x > build/../a.txt", "ask"),
        ("echo x > build/.git/config", "ask"),
        ("echo x > ~/../build/a", "ask"),
        ("echo x > ~+/../build/a", "ask"),
        ("echo x >& build/a", "allow"),
        ("echo x >& 'build/$(ls)'", "ask"),
        ("echo x >& build/a --output=y", "allow"),
        ("(echo x) > build/a y", "ask"),
        ("echo x >! build/a", "ask"),
        ("cd /etc; echo x > build/a", "ask"),
        ("echo x > $X", "ask"),
        ("ls > build/a", "ask"),
        ("echo x > build/a | ls", "ask"),
    ],
)
def test_a_redirection_is_allowed_by_the_rule_of_its_command(command: str, verdict: str) -> None:
    rule = AllowRule("Bash", shell=["echo *", "cd *"], path="build/**")
    assert decide([rule], command) == verdict


@pytest.mark.parametrize(
    "command",
    [
        "echo x > /etc/passwd",
        "cp x /etc/passwd",
        "dd of=/etc/passwd",
        "tee --output=/etc/passwd",
        "echo x > /tmp/../etc//passwd",
        "cd /etc && echo x > passwd",
        "echo x > ../../../etc/passwd",
        "sh -c 'echo x > /ETC/passwd'",
        "cat ~/../../etc/passwd",
        "cat ~root/../etc/passwd",
        "cd /etc; cat $PWD/passwd",
        "PWD=/etc; cat $PWD/passwd",
        "cat > $((1)) /etc/passwd",
        "{sh,-c,'ls >/etc/passwd'}",
        "npx 'ls >/etc/passwd'",
    ],
)
def test_a_deny_of_a_path_finds_it_in_a_line(command: str) -> None:
    assert decide([DenyRule("Bash", path="/etc/**"), AllowRule("Bash")], command) == "deny"


def test_a_glob_is_in_doubt_where_it_may_find_the_file() -> None:
    rules = [DenyRule("Bash", path=["**/.env", "/etc/**", "**/keys/*"]), AllowRule("Bash")]
    assert decide(rules, "cat *.py; ls *") == "ask"  # `keys` may be one of them
    for command in ("cat .en?", "cat /e*/passwd", "cat ../*", "cat $F"):
        assert decide(rules[:1] + rules[1:], command) == "ask"
    rules = [DenyRule("Bash", path=["**/.env", "/etc/**"]), AllowRule("Bash")]
    assert decide(rules, "cat *.py; ls src/*") == "allow"


def test_a_path_is_one_of_an_editing_tool_too() -> None:
    rules = [
        DenyRule("*", path=["**/.env", "~/.ssh/**"]),
        AllowRule(["Write", "Edit"], path="src/**"),
    ]

    def edit(file: str, **more: Any) -> Verdict:
        call = call_from("Write", {"file_path": file, "content": "x\n", **more}, target="mac")
        return Policy(rules).decide(call, "claude").verdict

    assert edit("src/a.py") is Verdict.ALLOW
    assert edit("src/../a.py") is Verdict.ASK
    assert edit("src/a.py", path="/etc/passwd") is Verdict.ASK
    assert edit("src/a.py", mode="777") is Verdict.ASK
    assert edit("src/.env") is Verdict.DENY
    assert edit("/home/ann/.ssh/config") is Verdict.DENY
    assert edit("~ann/.ssh/config") is Verdict.DENY
    assert edit("~/../ann/.ssh/config") is Verdict.DENY
    assert edit("~/../src/a.py") is Verdict.ASK
    assert decide(rules, "cat .env") == "deny"


def test_other_arguments_have_to_be_named() -> None:
    rule = AllowRule("Bash", shell="ls*")
    assert decide([rule], "ls", description="x", timeout=5) == "allow"
    assert decide([rule], "ls", dangerouslyDisableSandbox=True) == "ask"
    assert decide([rule], "ls", cmd="rm x") == "ask"
    assert decide([AllowRule("Bash", shell="ls*", others=["workdir"])], "ls", workdir="/") == (
        "allow"
    )
    closed = AllowRule("Bash", shell="ls*", arguments={"run_in_background": False})
    assert decide([closed], "ls", run_in_background=False) == "allow"
    assert decide([closed], "ls") == "ask"


def test_a_deny_looks_at_every_argument_that_may_be_a_line() -> None:
    rules = [DenyRule("*", shell="rm *"), AllowRule("*")]
    assert decide(rules, "git", args=["-C", "x"], tool="run") == "allow"
    assert decide(rules, "rm", args=["x"], tool="run") == "deny"
    assert decide(rules, ["git status; rm x"]) == "deny"
    assert decide(rules, ["ls -l", "rm x"], tool="run") == "deny"
    assert decide(rules, ["git", "commit", "-m", "x; rm x"]) == "allow"
    call = call_from("write_stdin", {"chars": "rm x\n"}, target="mac")
    assert Policy(rules).decide(call, "claude").verdict is Verdict.DENY


def test_a_deny_looks_at_code_and_input_for_what_they_say_alone() -> None:
    rules = [DenyRule("*", shell="rm *"), AllowRule("*")]
    for key in ("code", "input", "Code"):
        for said, verdict in (("ls; rm x", "deny"), ("rm x (", "deny"), ("f(x) :- y.", "allow")):
            call = call_from("run", {key: said}, target="mac")
            assert str(Policy(rules).decide(call, "claude").verdict) == verdict, (key, said)


@pytest.mark.parametrize(
    "command",
    [
        "[ $(cat f) ] && ls",
        "[ `cat f` ] && ls",
        "[ $x ] && ls",
        "[ -n $x ] && ls",
        '[ "$op" "$x" ] && ls',
        '[ "$a" "$op" "$b" ] && ls',
        "[ -v x ] && ls",
        "[ -v 'a[$(ls)]' ] && ls",
        "[ * ] && ls",
        "[ {-v,x} ] && ls",
        "test $x && ls",
        "test -v x && ls",
        "test $(cat f) && ls",
        "test 'a[$(ls)]' && ls",
        "command test $x",
    ],
)
def test_a_test_whose_operator_may_be_a_value_is_not_allowed(command: str) -> None:
    rule = AllowRule("Bash", shell=["ls*", "cat *", "test *", "command test *"])
    assert decide([rule], command) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "[ -f x ] && ls",
        '[ -n "$x" ] && ls',
        '[ "$x" ] && ls',
        '[ "$a" = "$b" ] && ls',
        '[ "$a" = x -o -d "$b" ] && ls',
        '[ -n "$(cat f)" ] && ls',
        "[[ $x == y ]] && ls",
        "test -f x && ls",
    ],
)
def test_a_test_whose_operators_are_written_is_allowed(command: str) -> None:
    assert decide([AllowRule("Bash", shell=["ls*", "cat *", "test *"])], command) == "allow"


@pytest.mark.parametrize(
    "path",
    [
        "/private/etc/passwd",
        "/proc/self/root/etc/passwd",
        "/proc/12/task/12/root/etc/passwd",
        "/System/Volumes/Data/private/etc/passwd",
        "/etc/passwd.",
        "/etc /passwd",
        "x/.env.",
        "x/.env::$DATA",
        ".env\n",
        "~root/.ssh/id",
        "/var/root/.ssh/id",
    ],
)
def test_a_deny_of_a_path_knows_other_names_of_it(path: str) -> None:
    rules = [DenyRule("*", path=["/etc/passwd", "**/.env", "~/.ssh/**"]), AllowRule("*")]
    for arguments in ({"file_path": path, "content": "a"}, {"from": {"files": [path]}}):
        call = call_from("move", arguments, target="mac")
        assert Policy(rules).decide(call, "claude").verdict is Verdict.DENY, arguments


def from_folder(folder: str, arguments: dict[str, Any], tool: str = "Bash") -> Call:
    call = call_from(tool, arguments, target="mac")
    meta = {**call.meta, DOOR: {"agent": "claude-code", "cwd": folder}}
    return msgspec.structs.replace(call, params={**call.params, "_meta": meta})


@pytest.mark.parametrize(
    ("folder", "path", "verdict"),
    [
        ("/etc", "passwd", "deny"),
        ("/etc/ssh", "../passwd", "deny"),
        ("/", "etc/passwd", "deny"),
        ("/work", "passwd", "allow"),
        ("/etc", "/work/passwd", "allow"),
        ("", "passwd", "allow"),
    ],
)
def test_a_deny_of_a_path_knows_the_folder_that_is_told(
    folder: str, path: str, verdict: str
) -> None:
    rules = [DenyRule("*", path="/etc/**"), AllowRule("*")]
    for tool, arguments in (
        ("Bash", {"command": f"cat {path}"}),
        ("Bash", {"command": f"ls > {path}"}),
        ("Write", {"file_path": path, "content": ""}),
    ):
        call = from_folder(folder, arguments, tool)
        assert str(Policy(rules).decide(call, "claude").verdict) == verdict, arguments
    moved = from_folder("/", {"command": "cd etc && cat passwd"})
    assert Policy(rules).decide(moved, "claude").verdict is Verdict.DENY


def test_no_allow_of_a_path_rests_on_the_folder_that_is_told() -> None:
    rules = [AllowRule("Write", path="/work/**")]
    call = from_folder("/work", {"file_path": "a.py", "content": ""}, "Write")
    assert Policy(rules).decide(call, "claude").verdict is Verdict.ASK


def test_without_a_tool_an_allow_is_for_shells_of_coding_agents() -> None:
    rule = AllowRule(shell="ls*")
    assert decide([rule], "ls", tool="Bash") == "allow"
    assert decide([rule], "ls", tool="deploy") == "ask"
    assert decide([DenyRule(shell="rm *"), AllowRule("*")], "rm x", tool="deploy") == "deny"


def test_without_the_parser_nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load_parser", lambda: None)
    reading.read_line.cache_clear()
    try:
        assert decide([READS], "git status") == "ask"
        assert decide(NO_RM, "git status") == "ask"
        assert decide(NO_RM, "git status; r\\m x") == "deny"
    finally:
        reading.read_line.cache_clear()


@pytest.mark.parametrize(
    "command",
    [
        "ls;" * 16_000,
        "(" * 25_000,
        "a|" * 25_000,
        "function ;;" + "-x " * 16_000,
        "sh -c '" * 7_000,
        "eval " * 10_000,
        "env " * 12_000,
        "{a,b}" * 400,
        "{a,b}" * 300,
        "$(" * 20_000 + "rm x",
        "x" * 100_000,
    ],
)
def test_a_line_that_takes_too_much_work_is_asked_about(command: str) -> None:
    assert decide([READS], command) == "ask"
    assert decide([DenyRule("Bash", shell="nothing here"), AllowRule("Bash")], command) == "ask"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"shell": "!git *"}, "no ! before"),
        ({"shell": " "}, "expected a text"),
        ({"shell": []}, "expected a pattern"),
        ({"shell": "ls {a,*"}, "not closed"),
        ({"path": "!x"}, "no ! before"),
        ({"shell": "ls", "method": "tools/list"}, "only calls of tools"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Policy([AllowRule(**values)])
