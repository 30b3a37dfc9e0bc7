"""Default heads for guided attention."""

from txport.models.config import Heads


def default_heads(decoder_layers: int) -> Heads:
    """Return (layer, head) to guide if a recipe names none: the first head of the last layer but one.

    Of two layers it is the last one.

    Without guidance that layer already aligns best (Garg et al. 2019, "Jointly Learning to Align and Translate with
    Transformer Models", section 4.1), and the last layer can use its result. The first of two layers has too little
    context: on the built-in corpus its heads align digits worst.
    """
    return ((decoder_layers - 2 if decoder_layers > 2 else decoder_layers - 1, 0),)
