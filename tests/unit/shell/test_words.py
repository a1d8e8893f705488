"""Scripts as a shell reads them, as far as vLLM's words need it."""

import time

import pytest

from kvgate.documents.written import Written
from kvgate.manifests.pods.containers import unwrapped
from kvgate.shell.branches import RESERVED
from kvgate.shell.words import commands_of, split
from kvgate.vllm.arguments import Argument
from support.tables import table

VARIABLES = {
    "MODEL": Written(value="Qwen/Qwen3-8B", path="env[0].value"),
    "ARGS": Written(value='--seed 1 --speculative-config {"method":"mtp"}', path="env[1].value"),
    "EMPTY": Written(value="", path="env[2].value"),
    "SECRET": Written(value=None, path="env[3].valueFrom"),
}


def texts(script: str) -> list[list[str]]:
    return [[word.text for word in command] for command in commands_of(script, "args[0]", VARIABLES)]


@table(
    ("script", "expected"),
    [
        ("a b\nc", [["a", "b"], ["c"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a && b || c; d & e | f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a 'x y' \"x y\" x\\ y", [["a", "x y", "x y", "x y"]]),
        ("a '$MODEL' \"$MODEL\" $MODEL ${MODEL}/x", [["a", "$MODEL", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B/x"]]),
        ("a ${NONE:-1} ${NONE-2} ${NONE} $SECRET", [["a", "1", "2", "${NONE}", "$SECRET"]]),
        ("a ${NONE:-${MODEL}/b} ${EMPTY:-c} ${EMPTY-d} ${MODEL:?is asked for}", [["a", "Qwen/Qwen3-8B/b", "c", "Qwen/Qwen3-8B"]]),
        ('a ${MODEL:+--b ${MODEL}} ${EMPTY:+--c} "${EMPTY+d}"', [["a", "--b", "Qwen/Qwen3-8B", "d"]]),
        ("a ${NONE:+--b ${NONE}} ${SECRET:+--c}", [["a", "${NONE:+--b ${NONE}}", "${SECRET:+--c}"]]),
        ("a $ARGS", [["a", "--seed", "1", "--speculative-config", '{"method":"mtp"}']]),
        ("X=\"--b {\\\"c\\\":1} 'd e'\"; a $X", [["a", "--b", '{"c":1}', "'d", "e'"]]),
        ("a $EMPTY b", [["a", "b"]]),
        ("# nothing\na # vllm serve x\nb#c", [["a"], ["b#c"]]),
        ("a > /tmp/log 2>&1 < in b", [["a", "b"]]),
        ("X=1; export Y='2 3'\na $X $Y \"$Y\"", [["a", "1", "2", "3", "2 3"]]),
        ("a $(hostname -i) $((1 + 2)) `date`", [["a", "$(hostname -i)", "3", "`date`"]]),
        ("a --b <(date) c >(tee d) << e", [["a", "--b", "<(date)", "c", ">(tee d)"]]),
        ("if [ x = y ]; then a; else b; fi", [["if", "[", "x", "=", "y", "]"], ["then", "a"], ["else", "b"], ["fi"]]),
        ("a 'unclosed", [["a", "'unclosed"]]),
        ("X=1; X+=' 2'\nN+=3\na $X $N", [["a", "1", "2", "3"]]),
        ("SECRET+=' 2'; a $SECRET", [["a", "$SECRET"]]),
        ("L=(b\n  'c d' # e\n)\nL+=(e); a \"${L[@]}\" ${L[*]}", [["a", "b", "c d", "e", "b", "c d", "e"]]),
        ('declare -a L=(b); a "${L[@]}" "${M[@]}" "x ${L[@]}"', [["a", "b", "${M[@]}", "x ${L[@]}"]]),
        ("set -- b 'c d'\nset -- \"$@\" e; a \"$@\"", [["a", "b", "c d", "e"]]),
        ('a "$@" b', [["a", "b"]]),
        ("a ${NONE:-\"1\"} ${NONE:-'2 3'} ${EMPTY:-\"\"}", [["a", "1", "2", "3"]]),
        ("N=$((A * B)); M=$(nproc --all); a --b $N $M", [["a", "--b", "$((A * B))", "$(nproc --all)"]]),
        ("set -- b c\na $2 ${1:-d} ${3:-e} $3", [["a", "c", "b", "e", "$3"]]),
        ("f() { a; }; f", [["f"], ["{", "a"], ["}"], ["f"]]),
        ("L=(never closed\na", [["never", "closed", "a"]]),
    ],
)  # fmt: skip
def test_a_script_is_its_commands(script: str, expected: list[list[str]]) -> None:
    assert texts(script) == expected


@table(
    ("script", "expected"),
    [
        ("X=1\nif b; then X=2; a $X; fi; a $X", ["2", "$X"]),
        ("if b; then\nX=1\nelse\nX=2\na $X\nfi\na $X", ["2", "$X"]),
        ("X=1; if b; then X=2; elif c; then a $X; else a $X; X=3; fi", ["1", "1"]),
        ("X=1; for i in 1 2; do X=$i; done; a $X", ["$X"]),
        ("X=1; case $Y in b) X=2; a $X;; c) a $X;; esac; a $X", ["2", "1", "$X"]),
        ("X=1; [ -n b ] && X=2 && a $X; a $X", ["2", "$X"]),
        ("X=1; test b && { X=2; Z=3; }\na $X $Z", ["$X", "$Z"]),
        ("X=1; b || X=2; a $X", ["$X"]),
        ("cd b && X=1 && a $X; a $X", ["1", "1"]),
        ("f() { X=1; if b; then X=2; fi; a $X; }; f; a $X", ["$X", "$X"]),
        ("if b; then if c; then X=1; fi; a $X; fi; a $X", ["$X", "$X"]),
        ("L=(b); if c; then L+=(d); a ${L[@]}; fi; a ${L[@]}", ["b", "d", "b", "${L}"]),
        ('set -- b; if c; then set -- "$@" d; fi; a "$@"', ["b", "${@}"]),
        ("X='b c'; if d; then X=\"$X e\"; fi; a $X", ["b", "c", "${X}"]),
        ("X=b; [ c ] && X+=' d'; [ e ] && X+=' f'; a $X", ["b", "${X}"]),
        ("if b; then X='c d'; elif e; then X='c f'; else X='c'; fi; a $X", ["c", "${X}"]),
        ("if b; then X=c; else X=c; fi; a $X", ["c"]),
        ("if b; then X=c; fi; a $X", ["$X"]),
        ("if b; then L=(c); else L=(c); fi; a ${L[@]}", ["c"]),
        ("X=1; if b; then X=$SECRET; fi; a $X", ["$X"]),
        ("if b\nfor c in d\nX=1\nfi\na $X", ["$X"]),
        ("python3 - <<E\nif x:\n  y\nE\nX=1; a $X", ["1"]),
        ("echo if; X=1; fi; a 'if' $X", ["if", "1"]),
    ],
)  # fmt: skip
def test_what_a_branch_sets_holds_within_it(script: str, expected: list[str]) -> None:
    commands = ([word for word in command if word not in RESERVED or word == "if"] for command in texts(script))
    used = [command[command.index("a") + 1 :] for command in commands if "a" in command]
    assert [word for words in used for word in words] == expected


@table(
    ("script", "expected"),
    [
        ("$((2 * NUM + 1))", "9"),
        ('"x$(( ${NUM} - ${NONE:-1} ))"', "x3"),
        ("$(( (NUM + 1) / 2 % 2 ))", "0"),
        ("$((-7 / 2))", "-3"),
        ("$((NUM * NONE))", "$((NUM * NONE))"),
        ("$((NUM / 0))", "$((NUM / 0))"),
        ("$((9999999999 * 9999999999))", "$((9999999999 * 9999999999))"),
        ("$((NUM ** 2))", "$((NUM ** 2))"),
        ("$((MODEL + 1))", "$((MODEL + 1))"),
        ("$((SECRET + 1))", "$((SECRET + 1))"),
    ],
)
def test_whole_numbers_are_calculated_where_all_are_known(script: str, expected: str) -> None:
    (command,) = texts(f"NUM=4; a {script}")
    assert command[1:] == [expected]


def test_words_keep_their_line_and_words_of_variables_their_place() -> None:
    (command,) = commands_of("vllm serve $MODEL \\\n  --a \\\n  --b=$MODEL $ARGS", "args[0]", VARIABLES)
    places = {word.text: (word.path, word.line) for word in command}
    assert places["vllm"] == ("args[0]", 0)
    assert places["Qwen/Qwen3-8B"] == ("env[0].value", 0)
    assert places["--a"] == ("args[0]", 1)
    assert places["--b=Qwen/Qwen3-8B"] == ("args[0]", 2)
    assert places["--seed"] == ("env[1].value", 0)


@table(
    ("words", "expected"),
    [
        (["sh", "-c", "vllm serve x"], ["vllm", "serve", "x"]),
        (["/bin/bash", "-lec", "exec vllm serve $@", "--", "--a", "--b"], ["exec", "vllm", "serve", "--a", "--b"]),
        (["sh", "-c", 'exec vllm serve "$@"', "--", "--a", "b c"], ["exec", "vllm", "serve", "--a", "b c"]),
        (["/bin/bash", "-lc", "--", "vllm serve x"], ["vllm", "serve", "x"]),
        (["bash", "-c", "sh -c 'vllm serve x'"], ["vllm", "serve", "x"]),
        (["sh", "-c", 'eval "vllm serve \\\n x $MODEL"'], ["vllm", "serve", "x", "Qwen/Qwen3-8B"]),
        (["bash", "-ceuo", "pipefail", "vllm serve x"], ["vllm", "serve", "x"]),
        (["bash", "-c", "-o", "pipefail", "-e", "vllm serve x"], ["vllm", "serve", "x"]),
        (["bash", "start.sh", "vllm"], ["bash", "start.sh", "vllm"]),
        (["bash", "start.sh", "-c", "vllm serve x"], ["bash", "start.sh", "-c", "vllm serve x"]),
        (["vllm", "serve", "x"], ["vllm", "serve", "x"]),
    ],
)  # fmt: skip
def test_a_shell_runs_its_script(words: list[str], expected: list[str]) -> None:
    command = [Argument(text=word, path="command") for word in words]
    (found,) = unwrapped(command, VARIABLES)
    assert [word.text for word in found] == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bash", "-euo", "pipefail", "/start.sh", "--a"], ["vllm", "serve", "x", "--a"]),
        (["exec", "/start.sh", "--a", "--b", "--c", "--d", "--e"], ["vllm", "serve", "x", "--a", "--b", "--c", "--d", "--e"]),
        (["bash", "/other.sh", "/start.sh"], ["bash", "/other.sh", "/start.sh"]),
        (["vllm", "serve", "x", "/start.sh"], ["vllm", "serve", "x", "/start.sh"]),
    ],
)  # fmt: skip
def test_a_script_of_the_input_is_run(words: list[str], expected: list[str]) -> None:
    command = [Argument(text=word, path=f"command[{index}]") for index, word in enumerate(words)]
    (found,) = unwrapped(command, VARIABLES, {"/start.sh": '\nvllm serve x "$@"'}.get)
    assert [word.text for word in found] == expected
    assert {word.line for word in found} == {0}


def test_a_line_without_a_shell_is_split_at_blanks_alone() -> None:
    assert split("--a 'x y' --b=\"z\" && $X") == ["--a", "x y", "--b=z", "&&", "$X"]


@pytest.mark.parametrize(
    "script",
    [
        "if a; then\n" * 5000 + "".join(f"A{n}=1; fi\n" for n in range(5000)),
        "if a; then\n" + "".join(f"elif b; then A{n}=1\n" for n in range(10000)) + "fi",
        "if a; then\n" + "".join(f"[ b ] && A{n}=1\n" for n in range(10000)) + "fi",
    ],
)
def test_thousands_of_branches_are_read_in_one_pass(script: str) -> None:
    started = time.process_time()
    assert texts(script)
    assert time.process_time() - started < 5


LOOP = """\
MODEL=a/b
NODES=""
EXTRA=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --model) MODEL="$2"; shift 2 ;;
    --nodes) NODES="$2"; shift 2 ;;
    *) EXTRA+=("$1"); shift ;;
  esac
done
RANKS=$((NODES * 8))
serve "$MODEL" --nodes $NODES "${EXTRA[@]}" --ranks $RANKS
"""


def test_a_loop_over_arguments_that_nobody_gives_leaves_defaults_and_no_value_for_what_must_be_given() -> None:
    (command,) = (each for each in commands_of(LOOP, "args", {}) if each[0].text == "serve")
    assert [word.text for word in command] == ["serve", "a/b", "--nodes", "$NODES", "--ranks", "$((NODES * 8))"]


def test_a_loop_over_arguments_that_are_given_may_set_what_they_name() -> None:
    given = [Argument(text=text, path="args") for text in ("--model", "c/d")]
    (command,) = (each for each in commands_of(LOOP, "args", {}, given) if each[0].text == "serve")
    assert command[1].text == "$MODEL"
