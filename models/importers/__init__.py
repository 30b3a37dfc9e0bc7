"""Importers, which convert checkpoints of other toolkits; one module for each format."""

# Module and function of the importer of each format, in the order of `tx-import --help`. Modules are imported when they
# are needed, so that commands can list the formats without PyTorch.
IMPORTERS = {
    "marian": "marian:import_marian",
    "m2m100": "m2m100:import_m2m100",
    "small100": "m2m100:import_small100",
    "seamless": "m2m100:import_seamless",
    "bart": "bart:import_bart",
    "pegasus": "pegasus:import_pegasus",
    "t5": "t5:import_t5",
    "vision": "states:import_vision",
    "whisper": "states:import_whisper",
    "torch": "textbooks.torch_transformer:import_torch",
    "fairseq": "fairseq:import_fairseq",
    "opennmt": "opennmt:import_opennmt",
    "eole": "eole.importer:import_eole",
    "ctranslate2": "ctranslate2.importer:import_ctranslate2",
    "argos": "ctranslate2.argos:import_argos",
    "marian-files": "marian_files.importer:import_marian_files",
    "annotated": "textbooks.annotated:import_annotated",
    "d2l": "textbooks.d2l:import_d2l",
}
