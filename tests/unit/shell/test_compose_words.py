"""Commands of docker-compose are split by go-shellwords: each case is one that its parser was read for."""

from kvgate.shell.words import compose_words
from support.tables import table


@table(
    ("text", "words"),
    [
        ("a b\tc\nd", ["a", "b", "c", "d"]),
        ("a 'b c' \"d e\" f'g'h", ["a", "b c", "d e", "fgh"]),
        ("a '' \"\" b", ["a", "", "", "b"]),
        ("""a '{"b": [1, 2]}'""", ["a", '{"b": [1, 2]}']),
        ('a {"b":1}', ["a", "{b:1}"]),
        ('a {\\"b\\":1}', ["a", '{"b":1}']),
        ("a 'b\\c' \"d\\e\" f\\g", ["a", "b\\c", "de", "fg"]),
        ("a \\\n b", ["a", "\n", "b"]),
        ("a\\ b", ["a b"]),
        ("a $B ${C} $(d e) `f g` #h *", ["a", "$B", "${C}", "$(d e)", "`f g`", "#h", "*"]),
        ("a ${B:-c d} e", ["a", "${B:-c d}", "e"]),
        ("a && b", ["a"]),
        ("a; b", ["a"]),
        ("a | tee b", ["a"]),
        ("a b>c", ["a", "b"]),
        ("a 2>&1 b", ["a"]),
        ("a '|' \";\" b", ["a", "|", ";", "b"]),
        ("", []),
        ("a 'b", None),
        ('a "b', None),
        ("a (b)", None),
        ("a b)", None),
        ("a $(b", None),
        ("a `b", None),
        ("a \\", None),
    ],
)
def test_a_command_is_split_as_compose_splits_it(text: str, words: list[str] | None) -> None:
    assert compose_words(text) == words
