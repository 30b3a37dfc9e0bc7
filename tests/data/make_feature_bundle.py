"""Makes `tests/data/feature_bundle`, a verified bundle of a small model that reads vectors, for tests without PyTorch.

Write it again with `python tests/data/make_feature_bundle.py`. Its golden.json has PyTorch's answers.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

BUNDLE = Path(__file__).with_name("feature_bundle")


def main() -> None:
    """Export the bundle."""
    from feature_models import feature_checkpoint
    from txport.exporter.export import ExportOptions, export_bundle

    sizes = {"d_model": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "target_vocabulary": 24}
    with TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "checkpoint"
        feature_checkpoint(checkpoint, **sizes, feature_size=6, norm="pre", frame_rate=50.0, max_positions=64)
        options = ExportOptions(lowerings=("ort", "scatter"), attention=True, beams=True, sentences=32, force=True)
        export_bundle(checkpoint, BUNDLE, options)


if __name__ == "__main__":
    main()
