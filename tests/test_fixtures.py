"""The shared checkpoint and bundle are worth testing with: a model that says one thing would pass nearly everything."""

from pathlib import Path

from txport.runtime.translator import Translator


def test_the_bundle_gives_outputs_that_follow_the_source_and_end(bundle: Path) -> None:
    translator = Translator(bundle)
    numbers = [
        "It cost $12.50.",
        "See you on 3/14/2025.",
        "Call 555-1234 today.",
        "at 5:30 pm",
        "The 3rd of May, 1998.",
    ]
    results = translator.translate(numbers * 4)
    assert len({result.text for result in results}) == len(numbers)
    assert sum(result.ids[-1] == translator.manifest.tokens.eos for result in results) > len(results) / 2
    assert len({token for result in results for token in result.ids}) > 15
