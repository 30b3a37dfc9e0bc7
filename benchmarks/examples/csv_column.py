"""Add a column with translations to a CSV file of any size.

python csv_column.py BUNDLE products.csv products.de.csv --column name
"""

import argparse
import csv
from collections.abc import Iterator
from itertools import islice

from txport.runtime import Translator

WINDOW = 1_000  # rows in memory at a time


def windows(rows: Iterator[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    """Group rows into lists of at most `WINDOW`."""
    while window := list(islice(rows, WINDOW)):
        yield window


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Add a column with translations to a CSV file.")
    parser.add_argument("bundle")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--column", required=True, help="Name of the column to translate.")
    arguments = parser.parse_args()

    translator = Translator(arguments.bundle, workers=0)
    new = f"{arguments.column}_translated"
    with open(arguments.source, newline="", encoding="utf-8-sig") as source:
        reader = csv.DictReader(source)
        if arguments.column not in (reader.fieldnames or []):
            parser.error(f"{arguments.source} has no column {arguments.column!r}, only {reader.fieldnames}")
        with open(arguments.target, "w", newline="", encoding="utf-8") as target:
            writer = csv.DictWriter(target, [*(reader.fieldnames or []), new], lineterminator="\n")
            writer.writeheader()
            for rows in windows(reader):
                results = translator.translate([" ".join(row[arguments.column].split()) for row in rows])
                writer.writerows({**row, new: result.text} for row, result in zip(rows, results, strict=True))


if __name__ == "__main__":
    main()
