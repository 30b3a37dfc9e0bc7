"""Models in CTranslate2's format, and packages of Argos Translate, which contain them."""
