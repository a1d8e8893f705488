"""Options are read from a parser's definition as they would be registered, without running any of it."""

import pytest

from support.vllm_source import new_source
from vllm_release.options import OptionFacts, read_options
from vllm_release.source import NotRead

EXPECTED = [
    OptionFacts(flag="--backend", dest="backend", type="str(a-B)", choices=("auto",)),
    OptionFacts(flag="--cache-config", dest="cache_config", type="json:CacheConfig", default={}),
    OptionFacts(flag="--cache-dtype", dest="cache_dtype", type="str", default="auto"),
    OptionFacts(flag="--cache-size", dest="cache_size", type="int(1k,1K)?"),
    OptionFacts(flag="--choice", dest="choice", type="int?", choices=(1, 2, None)),
    OptionFacts(flag="--device", dest="device", type="str", unread=("choices",)),
    OptionFacts(flag="--extra", dest="extra", type="json|str", default={}),
    OptionFacts(flag="--hosts", dest="hosts", type="json", default=["*"]),
    OptionFacts(flag="--http-port", dest="http_port", type="int", default=8000),
    OptionFacts(flag="--keeps-deprecated", dest="keeps_deprecated", type="bool", default=True, is_negatable=True),
    OptionFacts(flag="--kind", dest="kind", type="str", default="auto", choices=("auto", "half"), aliases=("-k",)),
    OptionFacts(flag="--level", dest="level", type="str", default=2),
    OptionFacts(flag="--limits", dest="limits", type="json", default={}),
    OptionFacts(flag="--max-length", dest="max_length", type="int(1k,1K)|auto"),
    OptionFacts(flag="--model", dest="model", type="str", default="org/model"),
    OptionFacts(flag="--old", dest="old", type="bool", default=False, is_negatable=True, is_deprecated=True),
    OptionFacts(flag="--quantization", dest="quantization", type="str?", aliases=("-q",)),
    OptionFacts(flag="--quiet", dest="quiet", type="bool", default=False),
    OptionFacts(flag="--role", dest="role", type="str", default="assistant"),
    OptionFacts(flag="--share", dest="memory_share", type="float", default=0.92, aliases=("--memory-share",)),
    OptionFacts(flag="--sizes", dest="sizes", type="list[int]?"),
    OptionFacts(flag="--skipped", dest="skipped", type="list[str]", default=[]),
    OptionFacts(flag="--token", dest="token", type="str|bare"),
]


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda option: option.flag)
def test_an_option_is_read_as_the_parser_would_take_it(expected: OptionFacts) -> None:
    options = read_options(new_source())
    assert options.keys() == {option.flag for option in EXPECTED}
    assert options[expected.flag] == expected


def test_a_condition_that_the_source_does_not_decide_stops_the_reading() -> None:
    source = new_source(
        frontend=('parser.add_argument("model_tag"', 'if on_gpu():\n        parser.add_argument("model_tag"')
    )
    with pytest.raises(NotRead, match=r"vllm/entrypoints/frontend\.py:\d+: options depend on on_gpu\(\)"):
        read_options(source)


def test_a_statement_of_a_new_kind_stops_the_reading() -> None:
    source = new_source(frontend=("    return EngineArgs.add_cli_args(parser)", "    with x:\n        return parser"))
    with pytest.raises(NotRead, match="statement of a kind that is not read: With"):
        read_options(source)


def test_a_parser_that_is_made_elsewhere_is_reported() -> None:
    with pytest.raises(NotRead, match="find where its options come from"):
        read_options(new_source(serve=("subparser_init", "something_else")))


def test_nothing_of_the_source_is_run() -> None:
    source = new_source(
        serve=("\nfrom", "\nimport os\nos.abort()\nfrom"),
        frontend=('    parser.add_argument("model', '    os.abort()\n    parser.add_argument("model'),
    )
    assert read_options(source).keys() == {option.flag for option in EXPECTED}
