"""How good translations are beyond one figure: sets to evaluate on, sentence scores, comparisons of models."""
