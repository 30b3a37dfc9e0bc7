"""Quality of translations beyond one figure: sets to evaluate on, sentence scores, comparisons of models."""
