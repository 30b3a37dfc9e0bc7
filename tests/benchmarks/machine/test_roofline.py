"""What a call must read and compute, against the parameters of the model itself."""

import dataclasses

import pytest
from txport.benchmarks.machine.roofline import Shape, encoder_cost, roofline, step_cost
from txport.benchmarks.report.schema import Bandwidth, Machine, Peak, Percentiles

SHAPE = Shape(encoder_layers=3, decoder_layers=2, d_model=8, ffn=24, vocabulary=40)
BANDWIDTH = (Bandwidth(1 << 10, 1e9), Bandwidth(1 << 30, 1e6))
MACHINE = Machine("", 1, 0, "", "", {}, None, None, 0.0, BANDWIDTH, (Peak("", "float32", 1e9),))


def test_weights_are_all_matrices_of_the_model_once() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")
    from txport.models.config import preset
    from txport.models.transformer import Transformer

    sizes = {"d_model": 8, "heads": 2, "ffn": 24, "encoder_layers": 3, "decoder_layers": 2}
    model = Transformer(preset("tiny", source_vocabulary=40, target_vocabulary=40, max_positions=16, **sizes))
    matrices = {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and "embedding" not in name
    }
    cross = sum(
        count for name, count in matrices.items() if "cross_attention.key" in name or "cross_attention.value" in name
    )
    encoder = sum(count for name, count in matrices.items() if name.startswith("encoder."))
    decoder = sum(count for name, count in matrices.items() if name.startswith("decoder."))
    assert SHAPE.encoder_weights == encoder + cross
    assert SHAPE.step_weights == decoder - cross + model.projection.weight.numel()


def test_a_batch_reads_the_weights_once_and_its_caches_for_each_row() -> None:
    one, four = (step_cost(SHAPE, rows, 10, 5, 4, 4) for rows in (1, 4))
    weights = SHAPE.step_weights * 4
    assert four.operations == 4 * one.operations
    assert four.bytes - weights == 4 * (one.bytes - weights)
    # Keys and values of 10 source tokens and of 6 that were made or are being made, 2 layers, 8 wide, 4 bytes.
    assert one.bytes - weights == 2 * (10 + 6) * 2 * 8 * 4


def test_attention_of_the_encoder_grows_with_the_square_of_the_source() -> None:
    short, long = (encoder_cost(SHAPE, 1, source, 4).operations for source in (8, 16))
    products = 2 * SHAPE.encoder_weights * 8
    assert long - 2 * products == 4 * (short - products) > 0


def test_the_bound_is_the_larger_of_both_times() -> None:
    call = Percentiles(100.0, 100.0, None)
    small = roofline(SHAPE, MACHINE, "float32", 1, 4, 1, call)
    assert small is not None and small.limit == "bandwidth"
    # Both parts are larger than the small array, so they are read as fast as the large one.
    assert small.bound_ms == pytest.approx(1e3 * small.bytes / 1e6)
    assert small.ratio == pytest.approx(100 / small.bound_ms)
    fast = dataclasses.replace(MACHINE, bandwidth=(Bandwidth(1, 1e12),))
    large = roofline(SHAPE, fast, "float32", 64, 4, 1, call)
    assert large is not None and large.limit == "compute"
    assert large.bound_ms == pytest.approx(1e3 * large.operations / 1e9)


def test_there_is_none_for_what_was_not_probed() -> None:
    assert roofline(SHAPE, MACHINE, "float16", 1, 4, 1, Percentiles(1, 1, None)) is None
